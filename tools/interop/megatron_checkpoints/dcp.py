"""Writes distributed checkpoints as Megatron's ranks write them, in one process."""

import argparse
import os

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
    shards = [Shard(piece.contiguous(), ShardMetadata(
        shard_offsets=list(offset), shard_sizes=list(piece.shape), placement="rank:0/cpu"))
        for offset, piece in pieces]
    properties = TensorProperties(dtype=tensor.dtype, layout=tensor.layout, requires_grad=False,
                                  memory_format=torch.contiguous_format, pin_memory=False)
    metadata = ShardedTensorMetadata(shards_metadata=[shard.metadata for shard in shards],
                                     size=tensor.size(), tensor_properties=properties)
    return ShardedTensor._init_from_local_shards_and_global_metadata(shards, metadata)


def save(directory, tensors, arguments, parts=()):
    """`tensors` by their keys; `parts` says into how many parts tensors of some keys are cut."""
    start()
    os.makedirs(directory, exist_ok=True)
    parts = dict(parts)
    state = {key: cut(tensor, parts[key]) if key in parts else tensor
             for key, tensor in tensors.items()}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(directory, thread_count=2))
    torch.save({"args": argparse.Namespace(**arguments), "iteration": 7, "checkpoint_version": 3.0},
               os.path.join(directory, "common.pt"))
    with open(os.path.join(directory, "metadata.json"), "w") as file:
        file.write('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
