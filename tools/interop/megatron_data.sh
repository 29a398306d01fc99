#!/usr/bin/env bash
# Compares our indexed datasets and samples with those of Megatron-LM's own Python code (compare.py). Prints
# "N passed, N failed".
#
# Takes numpy and PyTorch from $PYTHON, python3 or the system's python3, and installs megatron-core from
# the Python package index into a virtual environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

for candidate in "${PYTHON:-}" python3 /usr/bin/python3 ""; do
  if [ -n "$candidate" ] && "$candidate" -c 'import numpy, torch' >/dev/null 2>&1; then break; fi
done
if [ -z "$candidate" ]; then
  echo "megatron_data.sh: no Python with numpy and PyTorch; on Debian: apt-get install python3-torch python3-numpy"
  echo "0 passed, 1 failed"
  exit 1
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$candidate" -m venv --system-site-packages "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet --no-deps megatron-core==0.11.0 >&2
./bazelw build //tools:make_stories //tools:preprocess_data //tools/interop/megatron_data:dump_samples
PYTHONDONTWRITEBYTECODE=1 "$scratch/venv/bin/python" tools/interop/megatron_data/compare.py \
  "$(./bazelw info bazel-bin 2>/dev/null)" "$scratch/work"
