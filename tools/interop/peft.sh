#!/usr/bin/env bash
# Moves low-rank adapters between checkpoints and PEFT, both ways, and trains the same ones with both
# (peft/compare.py). Prints "N passed, N failed".
#
# PyTorch is found or installed as python.bash says; peft and transformers come from the Python
# package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_peft_packages
./bazelw build //tools:export_hf //tools:import_hf //tools/interop:dump_run
bin=$(./bazelw info bazel-bin 2>/dev/null)
mkdir "$scratch/runs" "$scratch/work"
"$bin/tools/interop/dump_run" --output="$scratch/runs"
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/peft/compare.py "$bin" "$scratch/runs" \
  "$scratch/work"
