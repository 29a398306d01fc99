#!/usr/bin/env bash
# Compares our tokenizers with the Python packages tokenizers and tiktoken, token for token
# (tokenizers/compare.py). Prints "N passed, N failed".
#
# GPT-2's vocabulary and some books come from the folder $MEGATRON_TEST_DATA; without it that part
# fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$scratch/venv" >&2 || {
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3-venv >&2
  "$python" -m venv "$scratch/venv" >&2
}
"$scratch/venv/bin/pip" install --quiet tokenizers==0.23.3 tiktoken==0.14.0 >&2
./bazelw build //tools/interop/tokenizers:encode_texts
PYTHONDONTWRITEBYTECODE=1 "$scratch/venv/bin/python" tools/interop/tokenizers/compare.py \
  "$(./bazelw info bazel-bin 2>/dev/null)/tools/interop/tokenizers/encode_texts" "$scratch/work" \
  "${MEGATRON_TEST_DATA:-}"
