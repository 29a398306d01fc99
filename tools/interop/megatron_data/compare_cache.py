"""Checks our index cache, blends and parts with files of their own against Megatron-LM's own code (the package megatron-core).

  compare_cache.py BIN_DIRECTORY WORK_DIRECTORY
"""

import glob
import os
import shutil
import subprocess
import sys

import megatron_package

megatron_package.install()
import numpy
import torch

torch.distributed.get_rank = lambda: 0  # blends ask which rank builds their index
from megatron.core.datasets import blended_megatron_dataset_builder, gpt_dataset, indexed_dataset

BIN, WORK = sys.argv[1], sys.argv[2]
INDEX = ["document_index", "sample_index", "shuffle_index"]
BLEND = ["dataset_index", "dataset_sample_index"]


class Tokenizer:
    vocab_size, eod, pad = 1000, 999, -1
    unique_identifiers = {"class": "numbers"}


def our(program, *arguments, **flags):
    command = [os.path.join(BIN, program), *arguments, *(f"--{name}={value}" for name, value in flags.items())]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


results = []


def check(what, condition):
    print(("same: " if condition else "DIFFERENT: ") + what, flush=True)
    results.append(bool(condition))


def write_corpus(name, documents, seed):
    random = numpy.random.RandomState(seed)
    builder = indexed_dataset.IndexedDatasetBuilder(name + ".bin", dtype=numpy.uint16)
    for _ in range(documents):
        tokens = random.randint(0, Tokenizer.eod, random.randint(1, 200)).tolist() + [Tokenizer.eod]
        builder.add_document(torch.IntTensor(tokens), [len(tokens)])
    builder.finalize(name + ".idx")


def theirs(cache, sizes, seq_length, seed, **blend):
    config = gpt_dataset.GPTDatasetConfig(
        random_seed=seed, sequence_length=seq_length, tokenizer=Tokenizer(), path_to_cache=cache,
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, **blend)
    return blended_megatron_dataset_builder.BlendedMegatronDatasetBuilder(gpt_dataset.GPTDataset, sizes, lambda: True, config).build()


def files(folder, kind, names):
    """The entry's files, by name. There must be one entry of this kind."""
    found = {name: glob.glob(f"{folder}/*-{kind}-{name}.npy") for name in names}
    assert all(len(paths) == 1 for paths in found.values()), found
    return [paths[0] for paths in found.values()]


def same_arrays(ours, others):
    same = len(ours) == len(others) > 0
    lines = our("tools/interop/megatron_data/dump_npy", *others)
    for our_path, their_path, line in zip(ours, others, lines):
        expected = numpy.load(their_path)
        array = numpy.load(our_path)
        same &= array.dtype == expected.dtype and numpy.array_equal(array, expected)
        type_name, shape, numbers = line.split(" ")
        same &= type_name == expected.dtype.str and shape == ",".join(map(str, expected.shape))
        same &= numbers == ",".join(map(str, expected.ravel()))
        # The files must have not only the same numbers but the bytes that numpy writes.
        numpy.save("again.npy", array)
        same &= open("again.npy", "rb").read() == open(our_path, "rb").read()
    return same


def compare_index(what, prefix, split, part, samples, seq_length, seed):
    their_cache, our_cache = f"{what}/theirs", f"{what}/ours"
    part_name = ["train", "valid", "test"][part]
    sizes = [None, None, None]
    sizes[part] = samples
    blend = dict(blend=([prefix], None), split=split)
    dataset = theirs(their_cache, sizes, seq_length, seed, **blend)[part]
    paths = our("tools/build_index", prefix=prefix, seq_length=seq_length, seed=seed, num_samples=samples, split=split,
                part=part_name, cache_dir=our_cache)
    their_paths = files(their_cache, f"GPTDataset-{part_name}", INDEX)
    check(f"{what}: {INDEX}", same_arrays(paths, their_paths) and paths == files(our_cache, f"GPTDataset-{part_name}", INDEX))
    # Megatron reads our files under its own file names.
    before = [dataset[i]["tokens"].tolist() for i in range(len(dataset))]
    for our_path, their_path in zip(paths, their_paths):
        shutil.copy(our_path, their_path)
    dataset = theirs(their_cache, sizes, seq_length, seed, **blend)[part]
    check(f"{what}: Megatron reads our files", not dataset.built_anew_on_cache_miss and
          [dataset[i]["tokens"].tolist() for i in range(len(dataset))] == before)


def compare_blend(what, prefixes, weights, split, sizes, seq_length, seed):
    their_cache, our_cache = f"{what}/theirs", f"{what}/ours"
    datasets = theirs(their_cache, sizes, seq_length, seed, blend=(prefixes, weights), split=split)
    path = ",".join(str(x) for pair in zip(weights, prefixes) for x in pair)
    for part, part_name in enumerate(["train", "valid"]):
        for again in ("built", "loaded"):
            lines = our("tools/interop/megatron_data/dump_samples", data_path=path, split=split, part=part, samples=sizes[part], print=50,
                        seq_length=seq_length, seed=seed, vocab_size=Tokenizer.vocab_size, cache_dir=our_cache)
            same = int(lines[0].split()[1]) == len(datasets[part])
            for i, line in enumerate(lines[1:]):
                same &= datasets[part][i]["tokens"].tolist() == [int(x) for x in line.split()[0].split(",")]
            check(f"{what}, {part_name}: samples of the index as {again}", same)
        kind = f"BlendedDataset-{part_name}"
        check(f"{what}, {part_name}: {BLEND}", same_arrays(files(our_cache, kind, BLEND), files(their_cache, kind, BLEND)))


def compare_own_files(what, paths, sizes, seq_length, seed):
    datasets = theirs(None, [*sizes, None], seq_length, seed, blend_per_split=[*paths, None])
    for part, (prefixes, weights) in enumerate(paths):
        path = ",".join(prefixes if weights is None else [str(x) for pair in zip(weights, prefixes) for x in pair])
        lines = our("tools/interop/megatron_data/dump_samples", data_path=path, split=["1,0,0", "0,1,0"][part], part=part, samples=sizes[part],
                    print=50, seq_length=seq_length, seed=seed, vocab_size=Tokenizer.vocab_size)
        same = int(lines[0].split()[1]) == len(datasets[part])
        for i, line in enumerate(lines[1:]):
            same &= datasets[part][i]["tokens"].tolist() == [int(x) for x in line.split()[0].split(",")]
        check(f"{what}, part {part}", same)


def main():
    os.makedirs(WORK, exist_ok=True)
    os.chdir(WORK)
    write_corpus("a", 700, 1)
    write_corpus("b", 90, 2)
    compare_index("one epoch", "a", "969,30,1", 0, 500, 64, 1234)
    compare_index("an epoch apart", "a", "969,30,1", 0, 1500, 64, 7)
    compare_index("many epochs of a part", "b", "80,15,5", 1, 900, 32, 1234)
    compare_blend("blend", ["a", "b"], [0.3, 0.7], "80,15,5", [900, 70, 5], 50, 1234)
    compare_blend("a blend of three", ["a", "b", "a"], [1.0, 1.0, 2.0], "80,15,5", [400, 70, 5], 50, 5)
    compare_blend("weights whose sum is not quite 1", ["a", "b", "a"], [0.7, 0.2, 0.1], "80,15,5", [1000, 70, 5], 50, 5)
    compare_blend("a blend of ten", ["a", "b"] * 5, [0.1] * 10, "80,15,5", [1000, 70, 5], 50, 5)
    compare_own_files("own files", [(["a"], None), (["b"], None)], [800, 60], 64, 1234)
    compare_own_files("own blends", [(["a", "b"], [0.2, 0.8]), (["b", "a"], [0.5, 0.5])], [800, 60], 64, 1234)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


sys.exit(main())
