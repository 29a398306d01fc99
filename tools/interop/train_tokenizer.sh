#!/usr/bin/env bash
# Compares tools:train_tokenizer with the BPE trainer of Hugging Face's tokenizers: vocabularies, merges, and what the
# written files encode there (train_tokenizer/compare.py). Prints "N passed, N failed".
#
# Installs tokenizers from the Python package index into a virtual environment. With $MEGATRON_TEST_DATA the texts
# there are trained on too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3}" -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet tokenizers==0.23.3 >&2
./bazelw build //tools:make_stories //tools:train_tokenizer
PYTHONDONTWRITEBYTECODE=1 "$scratch/venv/bin/python" tools/interop/train_tokenizer/compare.py \
  "$(./bazelw info bazel-bin 2>/dev/null)" "$scratch/work"
