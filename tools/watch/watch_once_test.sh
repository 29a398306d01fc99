#!/usr/bin/env bash
# Tests what a script sees of watch --once.
#
# Usage: watch_once_test.sh WATCH
set -eu
watch=$(readlink -f "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo '{"iteration": 4, "lm loss": 2.5}' > "$work/metrics.jsonl"
"$watch" --once "$work" > "$work/screen"
grep -q 2.5 "$work/screen" || { echo "FAILED: no loss in:" >&2; cat "$work/screen" >&2; exit 1; }

if "$watch" --once "$work" "$work/nosuch" > "$work/screen" 2> "$work/error"; then
  echo "FAILED: a run that is not there is no error" >&2
  exit 1
fi
grep -q nosuch "$work/error" || { echo "FAILED: no name in:" >&2; cat "$work/error" >&2; exit 1; }
echo "2 checks passed"
