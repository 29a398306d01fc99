#!/usr/bin/env bash
# Asks promtool about the metrics of a run and about the rules of alerts (monitoring/check.py).
# Prints "N passed, N failed".
#
# promtool comes from Debian's package prometheus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
command -v promtool >/dev/null || install_debian prometheus ||
  give_up "there is no promtool, and it could not be installed"
base_python=$(find_python 'import json, urllib.request') || give_up "there is no Python"
./bazelw build //megatron/train:pretrain_gpt //tools:grafana
PYTHONDONTWRITEBYTECODE=1 "$base_python" tools/interop/monitoring/check.py \
  "$(./bazelw info bazel-bin 2>/dev/null)" "$scratch/work"
