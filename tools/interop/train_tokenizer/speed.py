"""Times tools:train_tokenizer and the BPE trainer of Hugging Face's tokenizers in turn, on one thread and on all.

  speed.py BIN_DIRECTORY VOCAB_SIZE FILE...

data_speed.bash train runs it as it should be run.
Ours is the whole program, from its start to its files on disk; theirs is train() alone, after Python and its modules were loaded.
Each figure is the best of two. Files are plain text. Processor seconds are of all threads together; on a busy machine they tell more.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

THEIRS = """
import sys, time
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trainer = trainers.BpeTrainer(vocab_size=int(sys.argv[1]), min_frequency=2, show_progress=False, special_tokens=["<|endoftext|>"],
                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
start = time.perf_counter(), time.process_time()
tokenizer.train([sys.argv[2]], trainer)
print(time.perf_counter() - start[0], time.process_time() - start[1])
"""


def theirs(path, size, threads):
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="true")
    printed = subprocess.run([sys.executable, "-c", THEIRS, size, path], check=True, capture_output=True, env=environment).stdout
    return tuple(float(number) for number in printed.split())


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ours(program, path, size, threads):
    output = tempfile.mkdtemp()
    try:
        start = time.perf_counter(), children_seconds()
        subprocess.run([program, f"--input={path}", f"--vocab_size={size}", f"--threads={threads}", f"--output={output}/tokenizer"],
                       check=True, capture_output=True)
        return time.perf_counter() - start[0], children_seconds() - start[1]
    finally:
        shutil.rmtree(output)


def main():
    program, size = os.path.join(sys.argv[1], "tools/train_tokenizer"), sys.argv[2]
    cores = len(os.sched_getaffinity(0))
    for path in sys.argv[3:]:
        for threads in sorted({1, cores}):
            runs = [ours(program, path, size, threads) + theirs(path, size, threads) for _ in range(2)]
            our, our_cpu, their, their_cpu = (min(column) for column in zip(*runs))
            print(f"{os.path.basename(path)}, {os.path.getsize(path) / 1e6:.1f} MB, {size} tokens, {threads} threads: "
                  f"{our:.2f} s, theirs {their:.2f} s, {their / our:.1f} times as fast; "
                  f"processor {our_cpu:.2f} s, theirs {their_cpu:.2f} s, {their_cpu / our_cpu:.1f} times less", flush=True)


main()
