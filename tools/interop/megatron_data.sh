#!/usr/bin/env bash
# Compares our indexed datasets and samples with those of Megatron-LM's own Python code (compare.py), and samples
# of sentences for BERT and T5 (compare_sentences.py). Prints "N passed, N failed".
#
# Takes numpy and PyTorch from $PYTHON, python3 or the system's python3, and installs megatron-core from
# the Python package index into a virtual environment.
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
  echo "megatron_data.sh: installing python3-torch" >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3-torch python3-numpy python3-venv >&2
  python=$(find_python)
} || {
  echo "megatron_data.sh: no Python with numpy and PyTorch, and it could not be installed"
  echo "0 passed, 1 failed"
  exit 1
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv --system-site-packages "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet --no-deps megatron-core==0.11.0 packaging==24.2 >&2
./bazelw build //tools:build_index //tools:make_stories //tools:merge_datasets //tools:preprocess_data \
  //tools/interop/megatron_data:dump_npy //tools/interop/megatron_data:dump_samples \
  //tools/interop/megatron_data:dump_sentence_samples
bin="$(./bazelw info bazel-bin 2>/dev/null)"
parts=(compare compare_cache compare_sentences)
for part in "${parts[@]}"; do
  PYTHONDONTWRITEBYTECODE=1 "$scratch/venv/bin/python" "tools/interop/megatron_data/$part.py" "$bin" "$scratch/$part" || true
done | awk -v parts=${#parts[@]} '
  /^[0-9]+ passed, [0-9]+ failed$/ { passed += $1; failed += $3; finished++; next }
  { print; fflush() }
  END { failed += parts - finished; print passed + 0 " passed, " failed " failed"; exit failed > 0 }'
