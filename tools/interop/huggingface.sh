#!/usr/bin/env bash
# Moves models between checkpoints and Hugging Face's own packages, both ways, and compares files,
# weights and logits (huggingface/compare.py). Prints "N passed, N failed".
#
# Takes PyTorch from $PYTHON, python3 or the system's python3, and installs transformers and
# safetensors from the Python package index into a virtual environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

find_python() {
  for python in "${PYTHON:-}" python3 /usr/bin/python3; do
    if [ -n "$python" ] && "$python" -c 'import numpy, torch' >/dev/null 2>&1; then
      echo "$python"
      return
    fi
  done
  return 1
}

python=$(find_python) || {
  echo "huggingface.sh: installing python3-torch" >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3-torch python3-numpy python3-venv >&2
  python=$(find_python)
} || {
  echo "huggingface.sh: no Python with numpy and PyTorch, and it could not be installed"
  echo "0 passed, 1 failed"
  exit 1
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv --system-site-packages "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet transformers==4.46.3 safetensors==0.4.5 >&2
./bazelw build //tools:export_hf //tools:generate_text //tools:import_hf //megatron/train:pretrain_gpt \
  //tools/interop/huggingface:dump_logits //tools/interop/huggingface:copy_safetensors
PYTHONDONTWRITEBYTECODE=1 "$scratch/venv/bin/python" tools/interop/huggingface/compare.py \
  "$(./bazelw info bazel-bin 2>/dev/null)" "$scratch/work"
