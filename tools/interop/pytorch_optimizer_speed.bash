#!/usr/bin/env bash
# Times fused AdamW of PyTorch and the CPU Adam of DeepSpeed, both of the Python index
# (pytorch_optimizer_speed.py), and our update rules before and after them
# (//megatron/ops:optimizer_benchmark). Where DeepSpeed's does not build, it is left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_index_torch
./bazelw build //megatron/ops:optimizer_benchmark
ours=$(./bazelw info bazel-bin 2>/dev/null)/megatron/ops/optimizer_benchmark
"$ours"
export PYTHONDONTWRITEBYTECODE=1
"$venv_python" tools/interop/pytorch_optimizer_speed.py
# Beside the environment, which others use, and gone with the script.
time_deepspeed() {
  "$venv_python" -m pip install --quiet setuptools==80.9.0 wheel==0.45.1 --target "$scratch/build"
  PYTHONPATH=$scratch/build "$venv_python" -m pip install --quiet --no-build-isolation --no-deps \
    --target "$scratch/deepspeed" "${DEEPSPEED_PACKAGES[@]}"
  DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$scratch/built PYTHONPATH=$scratch/deepspeed:$scratch/build \
    PATH=$scratch/deepspeed/bin:$PATH "$venv_python" tools/interop/pytorch_optimizer_speed.py --deepspeed
}
time_deepspeed || echo "DeepSpeed's CPU Adam does not build or run here"
"$ours"
