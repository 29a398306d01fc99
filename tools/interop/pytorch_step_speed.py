"""Times training steps of GPT-2 124M in PyTorch on the CPU: the peer of //tools:step_benchmark.

    bash tools/interop/pytorch_step_speed.bash      # eager and compiled, with PyTorch of the Python index
    OPENBLAS_CORETYPE=SKYLAKEX /usr/bin/python3 tools/interop/pytorch_step_speed.py     # eager, with Debian's

The variable matters with Debian's PyTorch: its OpenBLAS takes many AVX-512 processors for old ones. Same shapes as the
benchmark's defaults: 4 samples of 256 tokens, fp32, dropout 0, the vocabulary padded to 50304, AdamW, clipping at 1.

Since PyTorch 2.4 all kinds have scaled_dot_product_attention and fused AdamW. Older ones have attention written out,
and AdamW over lists of tensors. Compiled means torch.compile, which needs a C++ compiler.
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, HIDDEN, HEADS, VOCABULARY, POSITIONS = 12, 768, 12, 50304, 1024
SAMPLES, LENGTH, STEPS = 4, 256, 7
# The first version with fused AdamW on the CPU.
HAS_FUSED_OPS = tuple(int(number) for number in torch.__version__.split(".")[:2]) >= (2, 4)


class Layer(nn.Module):

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.fc1, self.fc2 = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.register_buffer("future", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1))

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).view(SAMPLES, LENGTH, 3, HEADS, HIDDEN // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if HAS_FUSED_OPS:
            context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) * (HIDDEN // HEADS)**-0.5
            context = scores.masked_fill(self.future, float("-inf")).softmax(-1) @ v
        x = x + self.proj(context.transpose(1, 2).reshape(SAMPLES, LENGTH, HIDDEN))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):

    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(POSITIONS, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, labels):
        x = self.words(tokens) + self.positions(torch.arange(LENGTH))
        for layer in self.layers:
            x = layer(x)
        logits = self.norm(x) @ self.words.weight.T
        return F.cross_entropy(logits.view(-1, VOCABULARY), labels.reshape(-1))


def measure(threads, compiled):
    torch.manual_seed(1234)
    torch.set_num_threads(threads)
    model = Gpt2()
    options = {"fused": True} if HAS_FUSED_OPS else {"foreach": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, **options)
    loss = torch.compile(model, dynamic=False) if compiled else model
    seconds = []
    for step in range(STEPS + 1):
        tokens = torch.randint(50257, (SAMPLES, LENGTH + 1))
        start = time.perf_counter()
        optimizer.zero_grad()
        loss(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step > 0:  # the first one compiles and takes memory
            seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    print("PyTorch %s, %s, %d of its threads: %.1f ms a step, %.1f tokens/s (median of %d)" %
          (torch.__version__, "compiled" if compiled else "eager", threads, 1e3 * median, SAMPLES * LENGTH / median,
           STEPS), flush=True)


def main():
    parser = argparse.ArgumentParser(description="Times training steps of GPT-2 124M in PyTorch on the CPU.")
    parser.add_argument("--kinds", default="eager", help="eager, compiled or both, with a comma between them")
    kinds = parser.parse_args().kinds.split(",")
    if set(kinds) - {"eager", "compiled"}:
        parser.error("--kinds is eager, compiled or eager,compiled")
    if "compiled" in kinds and not HAS_FUSED_OPS:
        sys.exit("pytorch_step_speed.py: --kinds=compiled needs PyTorch 2.4 or later, and this is %s; "
                 "tools/interop/pytorch_step_speed.bash installs one" % torch.__version__)
    cores = len(os.sched_getaffinity(0))
    if "eager" in kinds:
        # PyTorch's own threads and those of its BLAS disturb each other on few cores, so both settings
        # are tried.
        for threads in sorted({1, cores}):
            measure(threads, False)
    if "compiled" in kinds:
        measure(cores, True)


if __name__ == "__main__":
    main()
