#!/usr/bin/env bash
# Times training steps in PyTorch of the Python index, eager and compiled (pytorch_step_speed.py), and
# ours before and after them (//tools:step_benchmark).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_index_torch
./bazelw build //tools:step_benchmark
ours=$(./bazelw info bazel-bin 2>/dev/null)/tools/step_benchmark
"$ours"
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/pytorch_step_speed.py --kinds=eager,compiled
"$ours"
