#!/usr/bin/env bash
# Compares families of decoders with Hugging Face's transformers: files, weights, logits, gradients and
# text, there and back (huggingface/families.py). Prints "N passed, N failed".
#
# PyTorch and transformers come from the Python package index, a download of gigabytes (python.bash).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_index_torch
./bazelw build //megatron/train:pretrain_gpt //tools:export_hf //tools:generate_text \
  //tools:import_hf //tools/interop/huggingface:dump_logits
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/huggingface/families.py \
  "$(./bazelw info bazel-bin 2>/dev/null)" "$scratch/work"
