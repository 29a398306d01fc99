#!/usr/bin/env bash
# Times the tokens that a GPT-2 of 124 million parameters generates on the same cores: `transformers` on
# PyTorch, llama.cpp and generate_text (generation_speed.py). The first time it compiles llama.cpp, which
# takes ten core minutes or more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_llama_packages
llama_python=$venv_python
use_index_torch
./bazelw build //tools:generate_text //tools:import_hf
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/generation_speed.py \
  "$(./bazelw info bazel-bin 2>/dev/null)" "$scratch/work" "$llama_python"
