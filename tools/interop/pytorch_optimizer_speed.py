"""Times AdamW on the CPU, on the values of //megatron/ops:optimizer_benchmark: PyTorch's fused one
or, with --deepspeed, DeepSpeed's CPU Adam, which DeepSpeed compiles at its first use.

The rate counts what the update reads and writes: 28 bytes for each value.
"""

import argparse
import time

import torch

_COUNT = 1 << 26
_BYTES = 28


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=0, help="threads; 0: PyTorch's choice")
    parser.add_argument("--rounds", type=int, default=10, help="updates that are timed")
    parser.add_argument("--deepspeed", action="store_true", help="DeepSpeed's CPU Adam")
    arguments = parser.parse_args()
    if arguments.threads > 0:
        torch.set_num_threads(arguments.threads)
    weights = torch.nn.Parameter(torch.ones(_COUNT))
    weights.grad = torch.full((_COUNT,), 0.25)
    if arguments.deepspeed:
        import deepspeed
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        optimizer = DeepSpeedCPUAdam([weights], lr=1e-4, weight_decay=0.1)
        name = "DeepSpeed %s, CPU Adam" % deepspeed.__version__
    else:
        optimizer = torch.optim.AdamW([weights], lr=1e-4, weight_decay=0.1, fused=True)
        name = "PyTorch %s, fused AdamW" % torch.__version__
    optimizer.step()
    start = time.perf_counter()
    for _ in range(arguments.rounds):
        optimizer.step()
    seconds = (time.perf_counter() - start) / arguments.rounds
    print("%s, fp32, %d threads: %.1f ms, %.1f GB/s, %.0f million values/s" %
          (name, torch.get_num_threads(), 1e3 * seconds, 1e-9 * _BYTES * _COUNT / seconds,
           1e-6 * _COUNT / seconds))


if __name__ == "__main__":
    main()
