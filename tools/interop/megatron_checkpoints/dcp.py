"""Writes distributed checkpoints as Megatron's ranks write them, in one process."""

import argparse
import itertools
import math
import os
import pickle

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties


def start():
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def cut(tensor, parts):
    """The tensor as a sharded one, cut into parts[d] parts along dim d."""
    pieces = [((0,) * tensor.dim(), tensor)]
    for dim, count in enumerate(parts):
        cuts = []
        for offset, piece in pieces:
            at = 0
            for chunk in torch.tensor_split(piece, count, dim):
                place = list(offset)
                place[dim] += at
                at += chunk.shape[dim]
                cuts.append((tuple(place), chunk))
        pieces = cuts
    return sharded(pieces, tensor, tensor.size())


def sharded(pieces, tensor, size):
    """The pieces, each behind its offset, as one tensor of this size and of the tensor's type."""
    shards = [Shard(piece.contiguous(), ShardMetadata(
        shard_offsets=list(offset), shard_sizes=list(piece.shape), placement="rank:0/cpu"))
        for offset, piece in pieces]
    properties = TensorProperties(dtype=tensor.dtype, layout=tensor.layout, requires_grad=False,
                                  memory_format=torch.contiguous_format, pin_memory=False)
    metadata = ShardedTensorMetadata(shards_metadata=[shard.metadata for shard in shards],
                                     size=size, tensor_properties=properties)
    return ShardedTensor._init_from_local_shards_and_global_metadata(shards, metadata)


def flattened(tensor, parts):
    """The tensor as Megatron's distributed optimizer keeps a state (its model space): each
    part flattened and cut into three pieces."""
    size = [dim // count for dim, count in zip(tensor.shape, parts)]
    pieces = []
    for index in itertools.product(*(range(count) for count in parts)):
        part = tensor[tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, size))].reshape(-1)
        at = 0
        for piece in torch.tensor_split(part, 3):
            if piece.numel() > 0:
                pieces.append(((*index, at), piece.view((1,) * len(parts) + (-1,))))
            at += piece.numel()
    return sharded(pieces, tensor, torch.Size([*parts, math.prod(size)]))


def save(directory, tensors, arguments, parts=(), flat=(), more=()):
    """`tensors` by their keys; `parts` says into how many parts tensors of some keys are cut, and
    `flat` the same of tensors whose parts are flattened. common.pt has `more` entries."""
    start()
    os.makedirs(directory, exist_ok=True)
    parts, flat = dict(parts), dict(flat)
    state = {key: flattened(tensor, flat[key]) if key in flat else
             cut(tensor, parts[key]) if key in parts else tensor
             for key, tensor in tensors.items()}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(directory, thread_count=2))
    if flat:
        # Megatron's planner adds the shapes.
        with open(os.path.join(directory, ".metadata"), "rb") as file:
            metadata = pickle.load(file)
        metadata.mcore_data = {key: {"nd_reformulated_orig_global_shape": tuple(tensors[key].shape)}
                               for key in flat}
        with open(os.path.join(directory, ".metadata"), "wb") as file:
            pickle.dump(metadata, file)
    torch.save({"args": argparse.Namespace(**arguments), "iteration": 7, "checkpoint_version": 3.0,
                **dict(more)}, os.path.join(directory, "common.pt"))
    with open(os.path.join(directory, "metadata.json"), "w") as file:
        file.write('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
