"""Checks our datasets and samples against Megatron-LM's own code (the package megatron-core).

  compare.py BIN_DIRECTORY WORK_DIRECTORY

Only the package's datasets folder is used. Its other imports, which need a GPU's libraries, are replaced by empty modules.
"""

import importlib.util
import json
import os
import subprocess
import sys
import types


def load_megatron():
    root = importlib.util.find_spec("megatron.core").submodule_search_locations[0]

    def module(name, path=None, **names):
        made = types.ModuleType(name)
        if path:
            made.__path__ = [path]
        made.__dict__.update(names)
        sys.modules[name] = made

    module("megatron", os.path.dirname(root))
    module("megatron.core", root)
    module("megatron.core.datasets", os.path.join(root, "datasets"))
    module("megatron.core.utils", log_single_rank=lambda *a, **k: None)
    module("megatron.core.parallel_state", get_virtual_pipeline_model_parallel_rank=lambda: None)
    module("megatron.core.datasets.megatron_tokenizer", MegatronTokenizer=object)
    from megatron.core.datasets import blended_megatron_dataset_builder, gpt_dataset, indexed_dataset

    return blended_megatron_dataset_builder.BlendedMegatronDatasetBuilder, gpt_dataset, indexed_dataset


Builder, gpt, indexed = load_megatron()
import compare_tools
import numpy
import torch

BIN, WORK = sys.argv[1], sys.argv[2]


class ByteTokenizer:
    vocab_size, eod, pad = 257, 256, -1
    unique_identifiers = {"class": "bytes"}


def our(program, *arguments):
    return subprocess.run([os.path.join(BIN, program), *arguments], check=True, capture_output=True, text=True, cwd=WORK).stdout


results = []


def check(what, condition):
    print(("same: " if condition else "DIFFERENT: ") + what, flush=True)
    results.append(bool(condition))


def write_with_megatron(jsonl, prefix):
    builder = indexed.IndexedDatasetBuilder(prefix + ".bin", dtype=indexed.DType.optimal_dtype(ByteTokenizer.vocab_size))
    for line in open(jsonl, encoding="utf-8"):
        ids = list(json.loads(line)["text"].encode())
        if ids:
            ids.append(ByteTokenizer.eod)
        builder.add_document(torch.IntTensor(ids), [len(ids)] if ids else [])
    builder.finalize(prefix + ".idx")


def our_samples(**flags):
    lines = our("tools/interop/megatron_data/dump_samples", *(f"--{k}={v}" for k, v in flags.items())).splitlines()
    samples = [[[float(x) for x in field.split(",")] for field in line.split()] for line in lines[1:]]
    return int(lines[0].split()[1]), samples


def their_starts(attention_mask):
    """Where documents start, from the mask: the first column that a row may see."""
    return attention_mask[0].logical_not().int().argmax(dim=1).unique().tolist()


def compare(name, blend, split, sizes, seq_length, seed, resets, mock=False):
    config = gpt.GPTDatasetConfig(
        random_seed=seed, sequence_length=seq_length, blend=None if mock else blend, split=split, tokenizer=ByteTokenizer(),
        reset_position_ids=resets, reset_attention_mask=resets, eod_mask_loss=resets, path_to_cache=None)
    kind = gpt.MockGPTDataset if mock else gpt.GPTDataset
    theirs = Builder(kind, sizes, lambda: True, config).build()
    path = "" if mock else ",".join(blend[0] if blend[1] is None else
                                    [str(x) for pair in zip(blend[1], blend[0]) for x in pair])
    # This release counts mock tokens past its vocabulary, later ones (and we) modulo it: a vocabulary that is large enough hides that.
    vocab_size = 4096 if mock else ByteTokenizer.vocab_size
    for part, dataset in enumerate(theirs):
        if dataset is None:
            continue
        size, samples = our_samples(data_path=path, split=split, part=part, samples=sizes[part], seq_length=seq_length,
                                    seed=seed, resets=str(resets).lower(), print=30, vocab_size=vocab_size)
        same = size == len(dataset)
        for i, (tokens, labels, positions, loss_mask, starts) in enumerate(samples):
            item = dataset[i]
            same &= item["tokens"].tolist() == tokens and item["labels"].tolist() == labels
            same &= item["position_ids"].tolist() == positions and item["loss_mask"].tolist() == loss_mask
            same &= their_starts(item["attention_mask"]) == starts
        check(f"{name}, part {part}: {size} samples, {len(samples)} of them looked at", same)


def main():
    os.makedirs(WORK, exist_ok=True)
    os.chdir(WORK)
    for name, bytes_, seed in (("a", 300000, 1), ("b", 80000, 2)):
        jsonl = f"{name}.jsonl"
        our("tools/make_stories", f"--bytes={bytes_}", f"--seed={seed}", f"--output={jsonl}")
        with open(jsonl, "a", encoding="utf-8") as file:
            for text in ("", "x", "\u00e9\u2603\U0001f600\n\u0000"):
                file.write(json.dumps({"text": text}) + "\n")
        our("tools/preprocess_data", f"--input={jsonl}", f"--output_prefix={name}", "--append_eod")
        write_with_megatron(jsonl, f"{name}_theirs")
        for end in ("bin", "idx"):
            check(f"bytes of {name}.{end}",
                  open(f"{name}_text_document.{end}", "rb").read() == open(f"{name}_theirs.{end}", "rb").read())
    a, b = "a_text_document", "b_text_document"
    compare("one epoch", ([a], None), "969,30,1", [2000, 60, 5], 128, 1234, False)
    compare("many epochs", ([b], None), "8,1,1", [7777, 500, 300], 64, 7, False)
    compare("resets", ([a], None), "90,5,5", [900, 40, 30], 512, 5, True)
    compare("blend", ([a, b], [0.3, 0.7]), "90,5,5", [5000, 100, 5], 100, 1234, False)
    compare("blend of three", ([a, b, a], [0.7, 0.2, 0.1]), "90,5,5", [5000, 100, 5], 100, 1234, False)
    compare("blend of ten", ([a, b] * 5, [0.1] * 10), "90,5,5", [1000, 100, 50], 100, 1234, False)
    compare("mock", None, "1,1,1", [1000, 100, 10], 1024, 1234, False, mock=True)
    compare_tools.compare(indexed, our, check)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


sys.exit(main())
