#!/usr/bin/env bash
# Reads the TensorBoard files of small runs, some of them killed in the middle, by TensorBoard of
# the Python package index (tensorboard/compare.py). Prints "N passed, N failed".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_tensorboard_packages
./bazelw build //megatron/train:pretrain_gpt //tools:metrics_to_tensorboard
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/tensorboard/compare.py \
  "$(./bazelw info bazel-bin 2>/dev/null)" "$scratch/work"
