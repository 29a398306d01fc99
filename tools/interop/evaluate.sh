#!/usr/bin/env bash
# Measures a small model by tools:evaluate on made-up files in the published forms of tasks, and compares
# with what lm_eval's own tasks find on the exported model, and with Megatron's and llm.c's rules in
# PyTorch (evaluate/check.py). Prints "N passed, N failed".
#
# PyTorch is found or installed as python.bash says.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_evaluation_packages
./bazelw build //megatron/train:pretrain_gpt //tools:evaluate //tools:export_hf //tools:make_stories \
  //tools:preprocess_data //tools:train_tokenizer
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/evaluate/check.py \
  "$(./bazelw info bazel-bin 2>/dev/null)" "$scratch/work"
