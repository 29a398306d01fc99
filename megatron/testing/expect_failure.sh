#!/usr/bin/env bash
# Usage: expect_failure.sh TEXT PROGRAM ARGUMENT...
# Passes when the program fails and says TEXT: the test of a test.
set -u
text=$1
shift
output=$("$@" 2>&1) && { echo "passed, but must fail: $*"; exit 1; }
grep -qF -- "$text" <<<"$output" || { printf 'failed without saying "%s":\n%s\n' "$text" "$output"; exit 1; }
echo "failed as it must: $text"
