#!/usr/bin/env bash
# Compares our tokenizers with the Python packages tokenizers and tiktoken, token for token
# (tokenizers/compare.py). Prints "N passed, N failed".
#
# GPT-2's vocabulary and some books come from the folder $MEGATRON_TEST_DATA; without it that part
# fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_tokenizer_packages
./bazelw build //tools/interop/tokenizers:encode_texts
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/tokenizers/compare.py \
  "$(./bazelw info bazel-bin 2>/dev/null)/tools/interop/tokenizers/encode_texts" "$scratch/work" \
  "${MEGATRON_TEST_DATA:-}"
