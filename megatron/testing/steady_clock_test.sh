#!/usr/bin/env bash
# Usage: steady_clock_test.sh WORKSPACE_FILE
#
# Fails where ranks, stores, servers and launchers wait by the clock that may be set, and not by
# SteadyNow() (base/steady_now.h). It reads the tree in which WORKSPACE_FILE really lies.
set -eu
cd "$(dirname "$(readlink -f "$1")")"
# The time of a launch is a date.
found=$(grep -rnE --include='*.cc' --include='*.h' \
  'absl::Now\(\)|GetCurrentTimeNanos|system_clock|WaitWithDeadline\(|AwaitWithDeadline\(' \
  megatron/base megatron/comm megatron/http megatron/islands |
  grep -v '^megatron/comm/launch/launcher\.cc:.* launched = ' || true)
[ -z "$found" ] || { echo "these wait by a clock that may be set:"; echo "$found"; exit 1; }
