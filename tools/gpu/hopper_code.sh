#!/usr/bin/env bash
# Checks the machine code of attention and of norms on Hopper (hopper_code.py). Prints "N passed, N
# failed".
#
# It needs a CUDA toolkit and no GPU. nvdisasm comes from the Python package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_nvdisasm
libraries=(//megatron/ops/cuda/hopper:attention //megatron/ops/cuda:layer_norm)
flags=(--config=cuda --define=cuda_archs=sm_90a)
./bazelw build "${flags[@]}" "${libraries[@]}"
./bazelw aquery "${flags[@]}" --output=jsonproto \
  "mnemonic(CudaCompile, $(IFS=+ && echo "${libraries[*]}"))" >"$scratch/actions.json"
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/gpu/hopper_code.py "$scratch/actions.json" \
  "$(./bazelw info "${flags[@]}" execution_root 2>/dev/null)" "$scratch"
