#!/usr/bin/env bash
# Measures what forms of data parallelism take on a slow network: two hosts of two ranks each, made
# of network namespaces, with a token bucket on either side of the link between them. It needs root
# and iproute2. Each row has a step's milliseconds, the median of its steps but the first, and the
# megabytes of a step that one host sends to the other. Islands (docs/diloco.md) send much in one
# step of several: theirs are means over these steps. Then collectives, flat and hierarchical, as
# comm_bench prints them; its picture and figures are left in $PICTURES if that is set.
#
#   bash tools/interop/slow_link.bash [RATE...]     for example: 1gbit 100mbit
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
rates=("${@:-1gbit}")
readonly STEPS=5
model=(--config=gpt_demo)
./bazelw build //megatron/train:pretrain_gpt //tools:comm_bench
pretrain=$(readlink -f bazel-bin/megatron/train/pretrain_gpt)
comm_bench=$(readlink -f bazel-bin/tools/comm_bench)
work=$(mktemp -d)
a=megatron-a-$$ b=megatron-b-$$

cleanup() {
  ip netns del "$a" 2>/dev/null || true
  ip netns del "$b" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

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
export MEGATRON_WORLD_SIZE=4 MEGATRON_LOCAL_WORLD_SIZE=2
export MASTER_ADDR=10.77.0.1 MASTER_PORT=29500

sent() { ip -n "$a" -s -j link show va | python3 -c "
import json, sys
print(json.load(sys.stdin)[0]['stats64']['tx']['bytes'])"; }

start() {  # starts a command on each rank of both hosts
  local rank host pids=()
  for rank in 0 1 2 3; do
    [ "$rank" -lt 2 ] && host=$a || host=$b
    MEGATRON_RANK=$rank MEGATRON_LOCAL_RANK=$((rank % 2)) ip netns exec "$host" \
      unshare --uts sh -c 'hostname "$1" && shift && exec "$@"' sh "host-$host" "$@" \
      > "$work/rank$rank" 2>&1 &
    pids+=($!)
  done
  for rank in 0 1 2 3; do
    wait "${pids[$rank]}" || { cat "$work/rank$rank" >&2; return 1; }
  done
}

train() {  # $1: steps; then fields of parallel, or of other sections by their whole names
  local steps=$1 field fields=()
  shift
  for field in "$@"; do
    [[ $field == *.* ]] || field=parallel.$field
    fields+=("--set=$field")
  done
  start "$pretrain" "${model[@]}" --set=generation= --set=train.eval_iters=0 \
    --set=train.global_batch_size=16 "--set=train.train_iters=$steps" --set=train.log_interval=1 \
    --set=optimizer.lr_warmup_iters=0 --set=system.num_threads=1 \
    --set=parallel.data_parallel_size=4 "${fields[@]}"
}

collectives() {  # $1: rate
  local files=()
  if [ -n "${PICTURES:-}" ]; then
    files=("--svg=$PICTURES/collectives_$1.svg" "--json=$PICTURES/collectives_$1.json")
  fi
  start "$comm_bench" --backend=tcp --ranks_per_host=2 --op=all_reduce,reduce_scatter,all_gather \
    -b 64K -e 16M -f 4 -n 5 "${files[@]}"
  cat "$work/rank0"
}

row() {  # $1: name; then fields of parallel
  local name=$1 before one all
  shift
  before=$(sent)
  train 1 "$@"
  one=$(sent)
  train "$STEPS" "$@"
  all=$(sent)
  cat "$work"/rank? | python3 -c "
import re, statistics, sys
times = [float(t) for t in re.findall(r'elapsed time per iteration \(ms\): ([0-9.]+)', sys.stdin.read())]
steps = ($all - $one - ($one - $before)) / ($STEPS - 1)
print('| %-36s | %9.1f | %8.2f |' % ('$name', statistics.median(times[1:]), steps / 1e6))"
}

island_row() {  # $1: name; $2: steps from one outer step to the next; then fields as train's
  local name=$1 every=$2 before one all
  shift 2
  set -- "$@" "diloco.sync_every=$every"
  before=$(sent)
  train "$every" "$@" train.exit_interval=1
  one=$(sent)
  train "$every" "$@"
  all=$(sent)
  # What is left of all steps but the first is the outer step's and that of all other steps.
  cat "$work"/rank? | python3 -c "
import re, statistics, sys
times = [float(t) for t in re.findall(r'elapsed time per iteration \(ms\): ([0-9.]+)', sys.stdin.read())]
steps = ($all - $one - ($one - $before)) / $every
print('| %-36s | %9.1f | %8.3f |' % ('$name', statistics.mean(times[1:]), steps / 1e6))"
}

for rate in "${rates[@]}"; do
  for side in "$a:va" "$b:vb"; do
    tc -n "${side%:*}" qdisc replace dev "${side#*:}" root tbf rate "$rate" burst 256kb latency 100ms
  done
  echo "$rate, 4 micro-batches a step on each rank"
  echo "| form | ms a step | MB a step |"
  echo "|---|---|---|"
  shared="use_distributed_optimizer=true"
  all="data_parallel_sharding_strategy=optim_grads_params"
  hpz="zero_hpz_partition_size=2" qwz="zero_quantized_weights=true"
  qgz="zero_quantized_gradients=true"
  two="num_distributed_optimizer_instances=2"
  levels="hierarchical_collectives_ranks_per_host=2"
  row "nothing sharded"
  row "nothing sharded, hierarchical" "$levels"
  row "ZeRO-1" "$shared"
  row "ZeRO-1, hierarchical" "$shared" "$levels"
  row "ZeRO-1 in 2 instances" "$shared" "$two"
  row "ZeRO-3" "$shared" "$all"
  row "ZeRO-3, hierarchical" "$shared" "$all" "$levels"
  row "ZeRO-3, secondary shards" "$shared" "$all" "$hpz"
  row "ZeRO-3, secondary shards, 8-bit weights" "$shared" "$all" "$hpz" "$qwz"
  row "ZeRO-3, also 4-bit gradients" "$shared" "$all" "$hpz" "$qwz" "$qgz"
  row "ZeRO-3 in 2 instances" "$shared" "$all" "$two"
  row "ZeRO-3, instances share states" "$shared" "$all" "$two" outer_dp_sharding_strategy=optim
  island_row "ZeRO-1, 2 islands, every 10" 10 "$shared" "$two"
  island_row "ZeRO-1, 2 islands, every 100" 100 "$shared" "$two"
  island_row "ZeRO-1, 2 islands, every 100, E3M0" 100 "$shared" "$two" \
    diloco.outer_gradient_dtype=e3m0
  # Of 8 experts, 4 on each host, each token goes to 4.
  model=(--config=moe_tiny --set=model.moe_router_topk=4)
  experts="expert_model_parallel_size=4"
  row "experts" "$experts"
  row "experts, hierarchical" "$experts" "$levels"
  row "experts, deduplicated dispatch" "$experts" "$levels" moe_deduplicated_dispatch=true
  model=(--config=gpt_demo)
  collectives "$rate"
done
