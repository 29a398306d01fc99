#!/usr/bin/env bash
# Times the tokens that a GPT-2 of 124 million parameters generates: `transformers` on PyTorch
# (generation_speed.py), and generate_text, on the same cores.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_torch_packages
./bazelw build //tools:generate_text //tools:import_hf
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/generation_speed.py \
  "$(./bazelw info bazel-bin 2>/dev/null)" "$scratch/work"
