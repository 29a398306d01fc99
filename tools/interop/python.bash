# Sourced by the scripts beside it: a Python for what they compare with, in a folder that goes when they end.
#
#   source tools/interop/python.bash
#   make_venv PACKAGE==VERSION...        # or
#   make_venv_with_torch PACKAGE==VERSION...
#
# Afterwards $scratch is an empty folder and "$venv_python" a Python of a virtual environment with the packages of the
# Python package index. PyTorch is that of $PYTHON, of python3 or of the system's python3; where none has it, Debian's
# python3-torch is installed, or, without apt or the right to use it, the index's torch.

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
venv_python=$scratch/venv/bin/python

# The first Python that can do $1, without a word.
find_python() {
  local python
  for python in "${PYTHON:-}" python3 /usr/bin/python3; do
    if [ -n "$python" ] && "$python" -c "$1" >/dev/null 2>&1; then
      echo "$python"
      return
    fi
  done
  return 1
}

install_debian() {
  command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || return 1
  echo "$(basename "$0"): installing $*" >&2
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"; } >&2
}

# What a script says that can't begin.
give_up() {
  echo "$(basename "$0"): $*"
  echo "0 passed, 1 failed"
  exit 1
}

make_venv() {  # packages
  local python
  python=$(find_python 'import venv, ensurepip') || { install_debian python3-venv && python=$(find_python 'import venv, ensurepip'); } ||
    give_up "no Python can make virtual environments, and python3-venv could not be installed"
  "$python" -m venv "$scratch/venv" >&2
  if [ $# -gt 0 ]; then "$venv_python" -m pip install --quiet "$@" >&2; fi
}

make_venv_with_torch() {  # packages
  local python shared=${XDG_CACHE_HOME:-$HOME/.cache}/megatron-pytorch
  local needed='import numpy, torch, venv, ensurepip'
  if python=$(find_python "$needed") ||
    { install_debian python3-torch python3-numpy python3-venv && python=$(find_python "$needed"); }; then
    "$python" -m venv --system-site-packages "$scratch/venv" >&2
  else
    # Too large to be fetched every time.
    echo "$(basename "$0"): taking torch from the Python package index, into $shared" >&2
    venv_python=$shared/bin/python
    [ -x "$venv_python" ] || python3 -m venv "$shared" >&2 || give_up "python3 can't make virtual environments"
    "$venv_python" -m pip install --quiet torch numpy >&2 || give_up "PyTorch could not be installed"
  fi
  if [ $# -gt 0 ]; then "$venv_python" -m pip install --quiet "$@" >&2; fi
  "$venv_python" -c 'import numpy, torch' >&2 || give_up "there is no Python with numpy and PyTorch"
}
