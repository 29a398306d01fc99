"""Checks preprocess_data and merge_datasets against the builder of Megatron-LM's own package, byte for byte.

What Megatron's tools/preprocess_data.py and tools/merge_datasets.py do around that builder is little, and written here in its terms:
a sentence without tokens is no sequence, a document without sequences gets no EOD but stands in the index, and shards are joined in the
order of their names.
"""

import gzip
import json
import random

import numpy
import torch

EOD = 256

WORDS = "the fox ran over that hill and saw nine owls because it was late".split()
OTHERS = ["\u00e9t\u00e9.", "\u732b\u3067\u3042\u308b\u3002", "\U0001f600!", 'He said "no."', "tab\tand\nnewline.", ""]


def same_files(a, b):
    return all(open(f"{a}.{end}", "rb").read() == open(f"{b}.{end}", "rb").read() for end in ("bin", "idx"))


def make_documents(seed, count):
    """Documents as lists of sentences, each of which every rule takes for one: a capital letter, words, a full stop."""
    draw = random.Random(seed)

    def sentence():
        return " ".join(draw.choices(WORDS, k=draw.randint(1, 12))).capitalize() + draw.choice(".!?")

    return [[sentence() for _ in range(draw.randint(0, 5))] for _ in range(count)]


def write_with_megatron(indexed, documents, prefix, vocab_size, encode, append_eod):
    builder = indexed.IndexedDatasetBuilder(prefix + ".bin", dtype=indexed.DType.optimal_dtype(vocab_size))
    for sentences in documents:
        pieces = [piece for piece in map(encode, sentences) if piece]
        if pieces and append_eod:
            pieces[-1] = pieces[-1] + [EOD]
        builder.add_document(torch.IntTensor(sum(pieces, [])), [len(piece) for piece in pieces])
    builder.finalize(prefix + ".idx")


def encode_bytes(text):
    return list(text.encode())


def compare_sentences(indexed, our, check):
    documents = make_documents(1, 400)
    with open("s.jsonl", "w", encoding="utf-8") as file:
        for sentences in documents:
            file.write(json.dumps({"text": " ".join(sentences), "title": "\u00e9"}) + "\n")
    listed = documents + [OTHERS, [""], []]
    with gzip.open("l.jsonl.gz", "wt", encoding="utf-8") as file:
        for sentences in listed:
            file.write(json.dumps({"text": sentences}, ensure_ascii=False) + "\n")
    for append_eod in (False, True):
        eod = ["--append_eod"] if append_eod else []
        our("tools/preprocess_data", "--input=s.jsonl", "--output_prefix=s", "--split_sentences", "--json_keys=text,title", *eod)
        write_with_megatron(indexed, documents, "s_theirs", 257, encode_bytes, append_eod)
        check(f"sentences that we split, EOD {append_eod}", same_files("s_text_sentence", "s_theirs"))
        write_with_megatron(indexed, [["\u00e9"]] * len(documents), "t_theirs", 257, encode_bytes, append_eod)
        check(f"a second key, EOD {append_eod}", same_files("s_title_sentence", "t_theirs"))
        our("tools/preprocess_data", "--input=l.jsonl.gz", "--output_prefix=l", *eod)
        write_with_megatron(indexed, listed, "l_theirs", 257, encode_bytes, append_eod)
        check(f"sentences that the input lists, compressed, EOD {append_eod}", same_files("l_text_document", "l_theirs"))


def compare_token_types(indexed, our, check):
    documents = [[" ".join(map(str, range(i, i + 50)))] for i in range(0, 60000, 1000)]
    with open("n.jsonl", "w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps({"text": document[0]}) + "\n")
    for vocab_size in (65499, 65500, 200000):
        our("tools/preprocess_data", "--input=n.jsonl", "--output_prefix=n", "--tokenizer_type=NullTokenizer", f"--vocab_size={vocab_size}")
        write_with_megatron(indexed, documents, "n_theirs", vocab_size, lambda text: list(map(int, text.split())), False)
        check(f"token type for a vocabulary of {vocab_size}", same_files("n_text_document", "n_theirs"))


def compare_merge(indexed, our, check):
    for dtype in (numpy.uint16, numpy.int32, numpy.int64):
        for multimodal in (False, True):
            names = []
            for shard in range(3):
                name = f"m{shard}"
                builder = indexed.IndexedDatasetBuilder(name + ".bin", dtype=dtype, multimodal=multimodal)
                for sentences in make_documents(shard, 50 * shard + 1) + [[]]:
                    pieces = [encode_bytes(sentence) for sentence in sentences]
                    lengths = [len(piece) for piece in pieces]
                    builder.add_document(torch.LongTensor(sum(pieces, [])), lengths, [shard] * len(lengths) if multimodal else None)
                builder.finalize(name + ".idx")
                names.append(name)
            builder = indexed.IndexedDatasetBuilder("m_theirs.bin", dtype=dtype, multimodal=multimodal)
            for name in names:
                builder.add_index(name)
            builder.finalize("m_theirs.idx")
            our("tools/merge_datasets", "--input=" + ",".join(names), "--output_prefix=m_ours")
            check(f"merged, {numpy.dtype(dtype).name}, modes {multimodal}", same_files("m_ours", "m_theirs"))


def compare(indexed, our, check):
    """`our` runs a program of ours in the current directory, `check` notes a result."""
    compare_sentences(indexed, our, check)
    compare_token_types(indexed, our, check)
    compare_merge(indexed, our, check)
