#!/usr/bin/env bash
# Compares our SentencePiece, WordPiece and unigram tokenizers with the packages sentencepiece and
# tokenizers from the Python package index (compare.py). Prints "N passed, N failed".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_tokenizer_packages
./bazelw build //tools/interop/tokenizers:encode_texts
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/sentencepiece/compare.py \
  "$(./bazelw info bazel-bin 2>/dev/null)/tools/interop/tokenizers/encode_texts" "$scratch/work"
