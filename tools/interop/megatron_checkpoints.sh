#!/usr/bin/env bash
# Compares import_megatron with checkpoints of PyTorch's distributed format, in Megatron's shape, and
# universal checkpoints in DeepSpeed's, which are made of small random models of Hugging Face
# (megatron_checkpoints/compare.py). Prints "N passed, N failed".
#
# PyTorch and transformers come from the Python package index, a download of gigabytes (python.bash).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_index_torch
./bazelw build //tools:export_hf //tools/torch_checkpoint:import_megatron \
  //tools/interop/huggingface:dump_logits
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=tools/interop/huggingface "$venv_python" \
  tools/interop/megatron_checkpoints/compare.py "$(./bazelw info bazel-bin 2>/dev/null)" \
  "$scratch/work"
