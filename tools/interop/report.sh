#!/usr/bin/env bash
# Makes reports about small runs, one of them killed and continued, and opens them in headless
# Chromium (report/check.py). Prints "N passed, N failed".
#
# Chromium and its driver come from Debian. With $REPORT_PICTURES, screenshots go to that folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
command -v chromium >/dev/null && command -v chromedriver >/dev/null ||
  install_debian chromium chromium-driver ||
  give_up "there is no chromium and no chromedriver, and they could not be installed"
base_python=$(find_python 'import json, urllib.request') || give_up "there is no Python"
./bazelw build //megatron/train:pretrain_gpt //tools:report
PYTHONDONTWRITEBYTECODE=1 "$base_python" tools/interop/report/check.py \
  "$(./bazelw info bazel-bin 2>/dev/null)" "$scratch/work" "${REPORT_PICTURES:-}"
