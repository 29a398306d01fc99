#!/usr/bin/env bash
# Serves a small model by tools:serve, and uses it by the Python packages openai and lm_eval and in
# headless Chromium (serve/check.py). lm_eval's scores are compared with those that it gets from the
# exported model in PyTorch. Prints "N passed, N failed".
#
# PyTorch is found or installed as python.bash says; Chromium and its driver come from Debian. With
# $SERVE_PICTURES, screenshots go to that folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
command -v chromium >/dev/null && command -v chromedriver >/dev/null ||
  install_debian chromium chromium-driver ||
  give_up "there is no chromium and no chromedriver, and they could not be installed"
use_evaluation_packages
./bazelw build //megatron/train:pretrain_gpt //tools:export_hf //tools:make_stories //tools:preprocess_data \
  //tools:serve //tools:train_tokenizer
PYTHONDONTWRITEBYTECODE=1 "$venv_python" tools/interop/serve/check.py \
  "$(./bazelw info bazel-bin 2>/dev/null)" "$scratch/work" "${SERVE_PICTURES:-}"
