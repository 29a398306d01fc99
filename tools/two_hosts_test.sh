#!/usr/bin/env bash
# Two hosts, made of network namespaces: ranks on them work together over TCP, and when the link
# between them is cut, each names the other and ends. Needs root.
#
# Usage: two_hosts_test.sh COMM_BENCH
set -eu
bench=$(readlink -f "$1")
work=$(mktemp -d)
a=megatron-a-$$ b=megatron-b-$$

cleanup() {
  ip netns del "$a" 2>/dev/null || true
  ip netns del "$b" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

fail() {
  echo "FAILED: $*" >&2
  cat "$work"/rank* >&2
  exit 1
}

ip netns add "$a"
ip netns add "$b"
ip link add va netns "$a" type veth peer name vb netns "$b"
ip -n "$a" addr add 10.77.0.1/24 dev va
ip -n "$b" addr add 10.77.0.2/24 dev vb
for host in "$a" "$b"; do ip -n "$host" link set lo up; done
ip -n "$a" link set va up
ip -n "$b" link set vb up

(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$work/secret")
export MEGATRON_JOB_SECRET_FILE="$work/secret"
export MEGATRON_WORLD_SIZE=2 MEGATRON_LOCAL_RANK=0 MEGATRON_LOCAL_WORLD_SIZE=1
export MASTER_ADDR=10.77.0.1 MASTER_PORT=29500

start() {  # calls per size
  MEGATRON_RANK=0 ip netns exec "$a" "$bench" --backend=tcp --op=all -b 8 -e 4M -f 64 -n "$1" \
    > "$work/rank0" 2>&1 &
  rank0=$!
  MEGATRON_RANK=1 ip netns exec "$b" "$bench" --backend=tcp --op=all -b 8 -e 4M -f 64 -n "$1" \
    > "$work/rank1" 2>&1 &
  rank1=$!
}

start 3
wait "$rank0" || fail "rank 0 ended with $?"
wait "$rank1" || fail "rank 1 ended with $?"
[ "$(grep -c 'Out of bounds values : 0 OK' "$work/rank0")" = 6 ] || fail "wrong results"

start 1000000
sleep 1
ip -n "$a" link set va down
begin=$SECONDS
wait "$rank0" && fail "rank 0 did not notice"
wait "$rank1" && fail "rank 1 did not notice"
[ $((SECONDS - begin)) -le 25 ] || fail "ranks took $((SECONDS - begin)) s to end"
grep -q 'rank 1 of world (10.77.0.2.*no sign of life' "$work/rank0" || fail "rank 1 is not named"
grep -q 'rank 0 of world (10.77.0.1.*no sign of life' "$work/rank1" || fail "rank 0 is not named"
echo "1 passed, 0 failed"
