#!/usr/bin/env bash
# Tests two hosts made of network namespaces: ranks on them work together over TCP and train what
# threads train, a probe finds two machines, and when the link between them is cut, each names the
# other and ends. It needs root.
#
# Usage: two_hosts_test.sh COMM_BENCH PRETRAIN_GPT PROBE_TOPOLOGY
set -eu
bench=$(readlink -f "$1")
pretrain=$(readlink -f "$2")
probe=$(readlink -f "$3")
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

both() {  # the same command as rank 0 on one host and as rank 1 on the other
  MEGATRON_RANK=0 ip netns exec "$a" "$@" > "$work/rank0" 2>&1 &
  rank0=$!
  MEGATRON_RANK=1 ip netns exec "$b" "$@" > "$work/rank1" 2>&1 &
  rank1=$!
}

cut_the_link() {
  ip -n "$a" link set va down
  begin=$SECONDS
  wait "$rank0" && fail "rank 0 did not notice"
  wait "$rank1" && fail "rank 1 did not notice"
  [ $((SECONDS - begin)) -le 25 ] || fail "ranks took $((SECONDS - begin)) s to end"
  grep -q 'rank 1 of world (10.77.0.2.*no sign of life' "$work/rank0" || fail "rank 1 is not named"
  grep -q 'rank 0 of world (10.77.0.1.*no sign of life' "$work/rank1" || fail "rank 0 is not named"
  ip -n "$a" link set va up
  sleep 2
}

# Each host has its own name.
both unshare --uts sh -c 'hostname "host-$MEGATRON_RANK" && exec "$@"' sh \
  "$probe" --bytes=1M "--output=$work/topology"
wait "$rank0" || fail "probe: rank 0 ended with $?"
wait "$rank1" || fail "probe: rank 1 ended with $?"
for text in 'node { host: "host-0" ranks: 1 rails: 1 }' 'node { host: "host-1" ranks: 1 rails: 1 }' \
            'rail_gb_per_s: '; do
  grep -q "$text" "$work/topology" || fail "the probed topology lacks: $text"
done

measure=("$bench" --backend=tcp --op=all -b 8 -e 4M -f 64 -n)
both "${measure[@]}" 3
wait "$rank0" || fail "rank 0 ended with $?"
wait "$rank1" || fail "rank 1 ended with $?"
[ "$(grep -c 'Out of bounds values : 0 OK' "$work/rank0")" = 6 ] || fail "wrong results"

both "${measure[@]}" 1000000
sleep 1
cut_the_link

cat > "$work/run.textproto" <<'CONFIG'
model { num_layers: 2 hidden_size: 32 num_attention_heads: 2 seq_length: 64 }
optimizer { lr: 3e-3 }
train { micro_batch_size: 2 global_batch_size: 4 train_iters: 6 log_interval: 1 }
data { stories { num_bytes: 100000 } }
parallel { pipeline_model_parallel_size: 2 }
CONFIG
train=("$pretrain" "--config=$work/run.textproto")
both "${train[@]}" "--set=checkpoint.save=\"$work/hosts\""
wait "$rank0" || fail "training: rank 0 ended with $?"
wait "$rank1" || fail "training: rank 1 ended with $?"
MEGATRON_LAUNCH=single "${train[@]}" "--set=checkpoint.save=\"$work/threads\"" > "$work/rank0" 2>&1 ||
  fail "threads ended with $?"
for shard in 0 1; do
  cmp "$work"/{hosts,threads}/iter_0000006/shard_0000${shard}_of_00002.bin || fail "shard $shard"
done

both "${train[@]}" --set=train.train_iters=100000
until grep -q 'iteration        3/' "$work/rank1"; do sleep 0.1; done
cut_the_link
for rank in 0 1; do
  for text in 'what the ranks were at:' "rank $rank on .*: iteration " \
              "rank $((1 - rank)) could not be asked" 'megatron::PretrainRank'; do
    grep -q "$text" "$work/rank$rank" || fail "the report of rank $rank lacks: $text"
  done
done
echo "1 passed, 0 failed"
