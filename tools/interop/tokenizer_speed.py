"""Encoding speed with GPT-2's vocabulary: ours beside the packages tokenizers and tiktoken, in one run.

usage: tokenizer_speed.py ENCODE_TEXTS DATA

data_speed.bash tokenizer runs it as it should be run. ENCODE_TEXTS is our program
(bazel build //tools/interop/tokenizers:encode_texts), DATA a folder with gpt2-vocab.json, gpt2-merges.txt
and the books. Needs tokenizers and tiktoken, in the versions of tokenizers.sh. A document is some lines, 4 KB or a little more; each figure is the best of seven passes over
all of them, taken in turns. Rates are by the clock; the last two columns are ratios of processor time, of all
threads together, which tell more on a busy machine.
"""

import json
import os
import subprocess
import sys
import time

import tiktoken
import tokenizers
from tokenizers import models, pre_tokenizers

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
DOCUMENT_BYTES = 4096
PASSES = 7


def documents(path):
    texts, lines, size = [], [], 0
    with open(path, encoding="utf-8") as book:
        for line in book:
            lines.append(line)
            size += len(line.encode())
            if size >= DOCUMENT_BYTES:
                texts.append("".join(lines))
                lines, size = [], 0
    return texts + ["".join(lines)]


def tiktoken_encoding(vocab):
    letters = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    others = [b for b in range(256) if b not in letters]
    byte_of = {chr(b): b for b in letters}
    byte_of.update({chr(256 + i): b for i, b in enumerate(others)})
    with open(vocab, encoding="utf-8") as file:
        ranks = {bytes(byte_of[c] for c in spelling): rank for spelling, rank in json.load(file).items()
                 if spelling != "<|endoftext|>"}
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks,
                             special_tokens={"<|endoftext|>": 50256})


def timed(encode):
    start, processor = time.perf_counter(), time.process_time()
    count = encode()
    return count, time.perf_counter() - start, time.process_time() - processor


class Ours:
    def __init__(self, program, vocab, merges):
        self.command = [program, "--tokenizer_type=GPT2BPETokenizer", "--vocab_file=" + vocab,
                        "--merge_file=" + merges]

    def run(self, texts, threads):
        data = b"".join(b"%d\n%s" % (len(t), t) for t in (x.encode() for x in texts))
        # Several passes run in one process, as in Python's case: the time to read vocabularies is
        # not measured.
        command = self.command + ["--measure=3", "--threads=%d" % threads]
        lines = subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
        results = [line.split() for line in lines]
        return int(results[0][0]), min(float(r[1]) for r in results), min(float(r[2]) for r in results)


def main():
    program, data = sys.argv[1:]
    vocab, merges = (os.path.join(data, n) for n in ("gpt2-vocab.json", "gpt2-merges.txt"))
    cores = len(os.sched_getaffinity(0))
    ours = Ours(program, vocab, merges)
    hf = tokenizers.Tokenizer(models.BPE.from_file(vocab, merges))
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoding = tiktoken_encoding(vocab)

    def run_hf(texts, threads):
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
        return timed(lambda: sum(len(e) for e in hf.encode_batch_fast(texts, add_special_tokens=False)))

    def run_tiktoken(texts, threads):
        if threads == 1:
            return timed(lambda: sum(len(encoding.encode_ordinary(t)) for t in texts))
        return timed(lambda: sum(map(len, encoding.encode_ordinary_batch(texts, num_threads=threads))))

    print("MB/s; %d cores" % cores)
    print("| text | threads | ours | tokenizers | tiktoken | ours / tokenizers | ours / tiktoken | processor | processor |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in ("shakespeare.txt", "wagahai.ja.txt"):
        texts = documents(os.path.join(data, name))
        size = sum(len(t.encode()) for t in texts)
        for threads in sorted({1, cores}):
            best, used, counts = {}, {}, set()
            for _ in range(PASSES):
                for who, run in (("ours", ours.run), ("hf", run_hf), ("tiktoken", run_tiktoken)):
                    count, seconds, processor = run(texts, threads)
                    counts.add(count)
                    best[who] = min(best.get(who, seconds), seconds)
                    used[who] = min(used.get(who, processor), processor)
            assert len(counts) == 1, "different numbers of tokens: %s" % counts
            speed = {who: size / seconds / 1e6 for who, seconds in best.items()}
            print("| %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f |" % (
                name, threads, speed["ours"], speed["hf"], speed["tiktoken"], speed["ours"] / speed["hf"],
                speed["ours"] / speed["tiktoken"], used["hf"] / used["ours"],
                used["tiktoken"] / used["ours"]), flush=True)


if __name__ == "__main__":
    main()
