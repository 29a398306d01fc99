"""Checks our samples of BERT and T5 against Megatron-LM's own code (the package megatron-core).

  compare_sentences.py BIN_DIRECTORY WORK_DIRECTORY
"""

import glob
import os
import random
import subprocess
import sys

import megatron_package

megatron_package.install()
import numpy
import torch

torch.distributed.get_rank = lambda: 0  # the datasets ask which rank builds their index
from megatron.core.datasets import bert_dataset, indexed_dataset, t5_dataset
from megatron.core.datasets.utils import Split

BIN, WORK = sys.argv[1], sys.argv[2]
VOCAB_SIZE = 1000


class Tokenizer:
    """Ids that are 3 modulo 4 continue words."""

    pad, cls, sep, mask, bos, eos = 0, 1, 2, 4, 5, 6
    vocab_size = VOCAB_SIZE
    inv_vocab = {i: ("##" if i % 4 == 3 else "") + str(i) for i in range(VOCAB_SIZE)}
    additional_special_tokens_ids = list(range(VOCAB_SIZE - 100, VOCAB_SIZE))
    unique_identifiers = {"class": "words"}


results = []


def check(what, condition):
    print(("same: " if condition else "DIFFERENT: ") + what, flush=True)
    results.append(bool(condition))


def write_corpus(prefix, documents, longest, seed):
    """Documents of few and many sentences, some empty, some with sentences that are too long."""
    draw = random.Random(seed)
    builder = indexed_dataset.IndexedDatasetBuilder(prefix + ".bin", dtype=numpy.int32)
    for _ in range(documents):
        lengths = [draw.choice((0, 1, longest, *[draw.randint(3, 60)] * 40)) for _ in range(draw.choice((1, 1, 2, 3, draw.randint(4, 30))))]
        builder.add_document(torch.IntTensor([draw.randint(7, VOCAB_SIZE - 101) for _ in range(sum(lengths))]), lengths)
    builder.finalize(prefix + ".idx")


def our_samples(**flags):
    arguments = [f"--{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in flags.items()]
    program = os.path.join(BIN, "tools/interop/megatron_data/dump_sentence_samples")
    lines = subprocess.run([program, *arguments], check=True, capture_output=True, text=True, cwd=WORK).stdout.splitlines()
    return int(lines[0].split()[1]), [[[int(x) for x in field.split(",")] for field in line.split()] for line in lines[1:]]


def their_dataset(kind, prefix, documents, samples, **settings):
    model = {"bert": bert_dataset, "t5": t5_dataset}[kind]
    name = {"bert": "BERT", "t5": "T5"}[kind] + "MaskedWordPieceDataset"
    config = getattr(model, name + "Config")(
        random_seed=settings["seed"], sequence_length=settings["seq_length"], split="1,0,0", blend=([prefix], None), tokenizer=Tokenizer(),
        masking_probability=settings["mask_prob"], short_sequence_probability=settings["short_seq_prob"],
        masking_max_ngram=settings["max_ngram"], masking_do_full_word=settings["full_word"], masking_do_permutation=False,
        masking_use_longer_ngrams=settings["longer_ngrams"], masking_use_geometric_distribution=settings["geometric"],
        path_to_cache=os.path.join(WORK, "cache"),
        **({"classification_head": settings["head"]} if kind == "bert" else {"sequence_length_decoder": settings["decoder_seq_length"]}))
    dataset = getattr(model, name)(
        indexed_dataset.IndexedDataset(prefix), prefix, numpy.arange(*documents, dtype=numpy.int32), samples, Split.train, config)
    # numpy 2 refuses what older releases computed: an index of unsigned integers minus one of signed integers.
    dataset.sample_index = dataset.sample_index.astype(numpy.int64)
    return dataset


def their_sample(kind, item):
    if kind == "bert":
        keys = ("text", "types", "labels", "loss_mask", "padding_mask", "is_random", "truncated")
    else:
        keys = ("text_enc", "text_dec", "labels", "loss_mask", "enc_mask", "dec_mask", "truncated")
    return [numpy.atleast_1d(item[key]).tolist() for key in keys]


def compare(what, kind, prefix, documents, samples, **changes):
    settings = {"seed": 1234, "seq_length": 128, "mask_prob": 0.15, "short_seq_prob": 0.1, "full_word": True, "longer_ngrams": False}
    settings.update({"bert": {"max_ngram": 3, "geometric": False, "head": True},
                     "t5": {"max_ngram": 10, "geometric": True, "decoder_seq_length": 64}}[kind])
    settings.update(changes)
    theirs = their_dataset(kind, prefix, documents, samples, **settings)
    flags = dict(model=kind, prefix=prefix, first_document=documents[0], last_document=documents[1], samples=samples, **settings)
    size, ours = our_samples(**flags)
    same = size == len(theirs)
    compared = 0
    for i, sample in enumerate(ours):
        try:
            expected = their_sample(kind, theirs[i])
        except (AssertionError, IndexError) as error:
            assert kind == "t5", error  # it ends the run where a decoder has too little room
            continue
        compared += 1
        if sample != expected:
            same = False
            print(f"  sample {i}: ours {sample}, theirs {expected}")
            break
    check(f"{what}: {size} samples, {compared} of them looked at", same and compared > 100)
    folder = os.path.join(WORK, f"lists{len(results)}")
    built, loaded = (our_samples(cache_dir=folder, **flags) for _ in range(2))
    check(f"{what}: a list of samples that is kept changes none", built == loaded == (size, ours))
    [path] = glob.glob(os.path.join(folder, f"*-{type(theirs).__name__}-sample_index.npy"))
    rows = numpy.load(path)
    check(f"{what}: the kept list", rows.dtype == numpy.uint32 and numpy.array_equal(rows, theirs.sample_index))


def main():
    os.makedirs(WORK, exist_ok=True)
    os.chdir(WORK)
    write_corpus("a", 600, 700, 1)
    write_corpus("b", 80, 512, 2)
    for kind in ("bert", "t5"):
        compare(f"{kind}, many epochs", kind, "a", (0, 600), 5000)
        compare(f"{kind}, some of the documents, another seed", kind, "a", (100, 350), 1000, seed=77, seq_length=64)
        compare(f"{kind}, long sequences", kind, "b", (0, 80), 300, seq_length=512, seed=4321, **({"decoder_seq_length": 160} if kind == "t5" else {}))
        compare(f"{kind}, pieces by themselves", kind, "b", (0, 80), 300, full_word=False)
        compare(f"{kind}, longer n-grams first", kind, "b", (0, 80), 300, longer_ngrams=True, geometric=False, max_ngram=11)
        compare(f"{kind}, much masked, no short samples", kind, "b", (0, 80), 300, mask_prob=0.4, short_seq_prob=0.0, **({"decoder_seq_length": 120} if kind == "t5" else {}))
        compare(f"{kind}, all short", kind, "b", (0, 80), 300, short_seq_prob=1.0)
    compare("bert, geometric", "bert", "a", (0, 600), 500, geometric=True, max_ngram=5)
    compare("bert without a head", "bert", "a", (0, 600), 500, head=False)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


sys.exit(main())
