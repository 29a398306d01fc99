#!/usr/bin/env bash
# Times fused AdamW on the CPU of PyTorch of the Python index (pytorch_optimizer_speed.py), and our
# update rules before and after it (//megatron/ops:optimizer_benchmark).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_index_torch
./bazelw build //megatron/ops:optimizer_benchmark
ours=$(./bazelw info bazel-bin 2>/dev/null)/megatron/ops/optimizer_benchmark
"$ours"
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/pytorch_optimizer_speed.py
"$ours"
