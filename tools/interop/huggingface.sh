#!/usr/bin/env bash
# Moves models between checkpoints and Hugging Face's own packages, both ways, and compares files,
# weights and logits (huggingface/compare.py). Prints "N passed, N failed".
#
# PyTorch is found or installed as python.bash says; transformers and safetensors come from the Python package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_torch_packages
./bazelw build //tools:export_hf //tools:fill_mask //tools:generate_text //tools:import_hf //tools:make_stories //tools:preprocess_data \
  //tools:train_tokenizer //megatron/train:pretrain_{bert,gpt,t5} \
  //tools/interop/huggingface:dump_logits //tools/interop/huggingface:copy_safetensors
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/huggingface/compare.py \
  "$(./bazelw info bazel-bin 2>/dev/null)" "$scratch/work"
