#!/usr/bin/env bash
# Compares our indexed datasets and samples with those of Megatron-LM's own Python code (compare.py), and samples
# of sentences for BERT and T5 (compare_sentences.py). Prints "N passed, N failed".
#
# numpy and PyTorch are found or installed as python.bash says; megatron-core comes from the Python package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
use_torch_packages
./bazelw build //tools:build_index //tools:make_stories //tools:merge_datasets //tools:preprocess_data \
  //tools/interop/megatron_data:dump_npy //tools/interop/megatron_data:dump_samples \
  //tools/interop/megatron_data:dump_sentence_samples
bin="$(./bazelw info bazel-bin 2>/dev/null)"
parts=(compare compare_cache compare_sentences)
for part in "${parts[@]}"; do
  PYTHONDONTWRITEBYTECODE=1 "$venv_python" "tools/interop/megatron_data/$part.py" "$bin" "$scratch/$part" || true
done | awk -v parts=${#parts[@]} '
  /^[0-9]+ passed, [0-9]+ failed$/ { passed += $1; failed += $3; finished++; next }
  { print; fflush() }
  END { failed += parts - finished; print passed + 0 " passed, " failed " failed"; exit failed > 0 }'
