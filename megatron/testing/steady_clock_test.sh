#!/usr/bin/env bash
# Usage: steady_clock_test.sh WORKSPACE_FILE
#
# Fails where ranks, stores, servers and launchers wait by the clock that may be set, and not by
# SteadyNow() (base/steady_now.h). It reads the tree in which WORKSPACE_FILE really lies.
set -eu
cd "$(dirname "$(readlink -f "$1")")"
# The times of a launch and of a claim are dates.
found=$(grep -rnE --include='*.cc' --include='*.h' \
  'absl::Now\(\)|GetCurrentTimeNanos|system_clock|WaitWithDeadline\(|AwaitWithDeadline\(' \
  megatron/base megatron/comm megatron/http megatron/islands |
  grep -vE '^megatron/comm/launch/(launcher\.cc:.* launched = |claim_line\.cc:.*FormatTime)' || true)
[ -z "$found" ] || { echo "these wait by a clock that may be set:"; echo "$found"; exit 1; }
