#!/usr/bin/env bash
# Usage: measures_test.sh WORKSPACE_FILE
#
# Fails when a model, or the trainer, reports a measure that metric_table.cc does not explain. It
# reads the sources of the tree in which WORKSPACE_FILE really lies.
set -eu
cd "$(dirname "$(readlink -f "$1")")"
table=megatron/train/metrics/metric_table.cc

# The first text after each "MeasureKind::kName, " and each name of a router's loss.
names=$(find megatron/models megatron/train/trainer -name '*.cc' ! -name '*_test.cc' -print0 |
  xargs -0 cat | tr '\n' ' ' |
  grep -oE 'MeasureKind::k[A-Za-z]+, *"[^"]+"|"[a-z_]*(load_balancing|z)_loss"' |
  grep -oE '"[^"]+"' | sort -u)
count=$(wc -l <<<"$names")
[ "$count" -ge 8 ] || { echo "only $count measures found: is this the source tree?"; exit 1; }
failed=0
while read -r name; do
  grep -qF "{$name, $name," "$table" || { echo "$table does not explain $name"; failed=1; }
done <<<"$names"
[ "$failed" = 0 ] && echo "$count measures, all of them explained"
exit "$failed"
