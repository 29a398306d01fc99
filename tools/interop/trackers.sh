#!/usr/bin/env bash
# Follows a run that is killed and continued by tools/track.py, and reads what W&B (offline), MLflow
# (SQLite) and trackio (local) of the Python package index have stored then (trackers/compare.py).
# Prints "N passed, N failed".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_tracker_packages
./bazelw build //megatron/train:pretrain_gpt
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/trackers/compare.py \
  "$(./bazelw info bazel-bin 2>/dev/null)" "$scratch/work"
