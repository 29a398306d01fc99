#!/usr/bin/env bash
# Trains small models with this project and with PyTorch, from the same weights on the same tokens,
# and compares them (pytorch_reference/compare.py), after checking that the model that is timed on
# GPUs is the same (pytorch_gpu_speed.py). Prints "N passed, N failed".
#
# PyTorch is found or installed as python.bash says; transformers comes from the Python package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_torch_packages
runs=$scratch/runs
mkdir "$runs"
./bazelw run //tools/interop:dump_run -- --output="$runs"
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/pytorch_gpu_speed.py --self_check
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/pytorch_reference/compare.py --self_check "$runs"
