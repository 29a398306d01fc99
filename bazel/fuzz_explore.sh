#!/usr/bin/env bash
# Usage: fuzz_explore.sh FUZZER MAX_LEN CORPUS_FILE...
# Lets a libFuzzer binary search for $FUZZ_SECONDS, from the corpus on; an input that breaks it is kept
# among the test's outputs.
set -eu
fuzzer=$1
max_len=$2
shift 2
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/corpus.XXXXXX")
i=0
for file in "$@"; do
  cp "$file" "$work/$((i += 1))-$(basename "$file")"
done
exec "$fuzzer" -max_len="$max_len" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=60 \
  -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="${TEST_UNDECLARED_OUTPUTS_DIR:-$work}/" "$work"
