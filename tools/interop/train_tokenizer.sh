#!/usr/bin/env bash
# Compares tools:train_tokenizer with the BPE trainer of Hugging Face's tokenizers: vocabularies, merges, and what the
# written files encode there (train_tokenizer/compare.py). Prints "N passed, N failed".
#
# Installs tokenizers and tiktoken from the Python package index into a virtual environment. With $MEGATRON_TEST_DATA the texts
# there are trained on too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_tokenizer_packages
./bazelw build //tools:make_stories //tools:train_tokenizer
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/train_tokenizer/compare.py \
  "$(./bazelw info bazel-bin 2>/dev/null)" "$scratch/work"
