"""Times preprocess_data against a straight Python loop over the `tokenizers` package, side by side, and compares their tokens.

    preprocess_speed.py PREPROCESS_DATA VOCAB_JSON MERGES_TXT TEXT...

data_speed.bash preprocess runs it as it should be run. Needs tokenizers 0.23.3 and numpy.

Each TEXT, cut into documents of some kilobytes and repeated up to --megabytes, is a corpus of its own. The loop does what Megatron's
script does: worker processes parse lines and encode, the parent writes the tokens. Both run with one worker, then with one for each core.
Speeds are megabytes of lines per second, by the clock, and per second of all processors together, which a busy machine distorts less.
"""

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import tempfile
import time

import numpy
import tokenizers


def start_worker(vocab, merges):
    global tokenizer
    # Each process has one thread, as there is a process for each core.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = tokenizers.ByteLevelBPETokenizer(vocab, merges)


def encode(line):
    ids = tokenizer.encode(json.loads(line)["text"]).ids
    if ids:
        ids.append(50256)
    return ids


def python_loop(args, source, prefix, workers):
    lengths = []
    with open(source, encoding="utf-8") as lines, open(prefix + ".bin", "wb") as out:
        with multiprocessing.Pool(workers, start_worker, (args.vocab, args.merges)) as pool:
            for ids in pool.imap(encode, lines, 32):
                out.write(numpy.array(ids, dtype=numpy.uint16).tobytes())
                lengths.append(len(ids))
    numpy.array(lengths, dtype=numpy.int32).tofile(prefix + ".lengths")


def ours(args, source, prefix, workers):
    subprocess.run([args.program, f"--input={source}", f"--output_prefix={prefix}", "--append_eod", f"--workers={workers}",
                    "--tokenizer_type=GPT2BPETokenizer", f"--vocab_file={args.vocab}", f"--merge_file={args.merges}"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make_corpus(text, path, megabytes):
    """Documents of about 4 kB, the text over and over, each time cut at other places; returns the bytes of the lines."""
    words, size, round_ = open(text, encoding="utf-8").read(), 0, 0
    with open(path, "w", encoding="utf-8") as out:
        while size < megabytes * 1e6:
            length = 3000 + 7 * round_ % 1500
            for begin in range(0, len(words), length):
                line = json.dumps({"text": words[begin:begin + length]}, ensure_ascii=False) + "\n"
                out.write(line)
                size += len(line.encode())
            round_ += 1
    return os.path.getsize(path)


def processor_seconds():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def best_speeds(function, megabytes, repeats):
    """By the clock, and by the processors' time, with what children of processes took."""
    clock, processors = [], []
    for _ in range(repeats):
        begin, used = time.perf_counter(), processor_seconds()
        function()
        clock.append(time.perf_counter() - begin)
        processors.append(processor_seconds() - used)
    return megabytes / min(clock), megabytes / min(processors)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("vocab")
    parser.add_argument("merges")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(f"{'text':20} {'workers':>7} {'MB':>5}   clock: {'Python':>6} {'ours':>6} {'ratio':>6}   processors: {'Python':>6} {'ours':>6} "
          f"{'ratio':>6}   tokens")
    with tempfile.TemporaryDirectory() as folder:
        for text in args.texts:
            source = os.path.join(folder, "corpus.jsonl")
            megabytes = make_corpus(text, source, args.megabytes) / 1e6
            theirs, mine = os.path.join(folder, "theirs"), os.path.join(folder, "mine")
            for workers in sorted({1, cores}):
                python, python_cpu = best_speeds(lambda: python_loop(args, source, theirs, workers), megabytes, args.repeats)
                cpp, cpp_cpu = best_speeds(lambda: ours(args, source, mine, workers), megabytes, args.repeats)
                same = open(theirs + ".bin", "rb").read() == open(mine + "_text_document.bin", "rb").read()
                print(f"{os.path.basename(text):20} {workers:7} {megabytes:5.1f}          {python:6.2f} {cpp:6.2f} {cpp / python:6.1f}"
                      f"               {python_cpu:6.2f} {cpp_cpu:6.2f} {cpp_cpu / python_cpu:6.1f}   {'the same' if same else 'DIFFERENT'}",
                      flush=True)


if __name__ == "__main__":
    main()
