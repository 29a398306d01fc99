#!/usr/bin/env bash
# Trains small models with this project and with PyTorch, from the same weights on the same tokens,
# and compares them (pytorch_reference/compare.py). Prints "N passed, N failed".
#
# Takes PyTorch from $PYTHON, from python3, or from the system's python3; where none has it, Debian's
# python3-torch is installed, or, without apt or the right to use it, the package index's torch into
# a virtual environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

has_torch() { "$1" -c 'import numpy, torch' >/dev/null 2>&1; }

find_python() {
  for python in "${PYTHON:-}" python3 /usr/bin/python3 "$venv/bin/python"; do
    if [ -n "$python" ] && has_torch "$python"; then
      echo "$python"
      return
    fi
  done
  return 1
}

install_torch() {
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "pytorch.sh: installing python3-torch" >&2
    if { apt-get update -q && DEBIAN_FRONTEND=noninteractive \
         apt-get install -y -q --no-install-recommends python3-torch python3-numpy; } >&2; then
      return
    fi
  fi
  echo "pytorch.sh: installing torch from the Python package index into $venv" >&2
  python3 -m venv "$venv" >&2
  "$venv/bin/pip" install --quiet torch numpy >&2
}

venv=${XDG_CACHE_HOME:-$HOME/.cache}/megatron-pytorch
python=$(find_python) || { install_torch; python=$(find_python); } || {
  echo "pytorch.sh: no Python with PyTorch, and it could not be installed" >&2
  echo "0 passed, 1 failed"
  exit 1
}

runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
./bazelw run //tools/interop:dump_run -- --output="$runs"
PYTHONDONTWRITEBYTECODE=1 "$python" tools/interop/pytorch_reference/compare.py --self_check "$runs"
