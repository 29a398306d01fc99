#!/usr/bin/env bash
# Tests probe_topology on ranks of this machine, and runs that take their order of ranks from its
# file.
#
# Usage: probe_topology_test.sh LAUNCH PROBE_TOPOLOGY PRETRAIN_GPT
set -eu
launch=$(readlink -f "$1")
probe=$(readlink -f "$2")
pretrain=$(readlink -f "$3")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0

expect() {  # what, pattern, file
  grep -q -- "$2" "$3" || { echo "FAILED: $1: no '$2' in:" >&2; cat "$3" >&2; exit 1; }
  passed=$((passed + 1))
}

printf 'GPU0 GPU1 GPU2 GPU3 NIC0\nGPU0 X NV4 SYS SYS PIX\nGPU1 NV4 X SYS SYS PIX\n%s\n%s\n' \
  'GPU2 SYS SYS X NV4 SYS' 'GPU3 SYS SYS NV4 X SYS' > "$work/links"

"$launch" --ranks=4 -- "$probe" --bytes=64K "--output=$work/probed" > "$work/log" 2>&1
expect "a rank's line has its speeds and latencies" '\] 3  *[0-9.e+]*  *[0-9.e+]*  *[0-9.e+]*  *-' \
  "$work/log"
expect "ranks of a machine are a node" "ranks: 4 rails: 1 }" "$work/probed"
expect "and a domain" "^domain: 4" "$work/probed"
expect "whose speed is measured" "^domain_gb_per_s: [0-9]" "$work/probed"

"$launch" --ranks=4 -- "$probe" --bytes=64K "--gpu_links=$work/links" "--output=$work/pairs" \
  > "$work/log" 2>&1
expect "NVLink makes domains" "^domain: 2" "$work/pairs"
expect "which are joined more slowly" "^node_gb_per_s: [0-9]" "$work/pairs"

cat > "$work/run.textproto" <<'CONFIG'
model { num_layers: 2 hidden_size: 32 num_attention_heads: 2 seq_length: 64 }
optimizer { lr: 3e-3 }
train { micro_batch_size: 2 global_batch_size: 4 train_iters: 2 log_interval: 1 }
data { stories { num_bytes: 100000 } }
parallel { pipeline_model_parallel_size: 2 data_parallel_size: 2 }
CONFIG
run=("$pretrain" "--config=$work/run.textproto")
MEGATRON_LAUNCH=single "${run[@]}" "--set=parallel.topology_file=\"$work/probed\"" \
  > "$work/log" 2>&1
expect "a run takes what was probed" "^rank order: tp-cp-ep-dp-pp, .* on 1 node of 4 ranks" \
  "$work/log"
expect "and trains" "iteration        2/" "$work/log"

# Gradients are more bytes than messages between stages: data-parallel ranks share a machine.
mkdir "$work/0" "$work/1" "$work/2" "$work/3"
for rank in 0 1 2 3; do
  cat > "$work/$rank/machines" <<'SHAPE'
node { host: "a" ranks: 2 }
node { host: "b" ranks: 2 }
domain_gb_per_s: 10
rail_gb_per_s: 0.001
SHAPE
done
# shellcheck disable=SC2016
in_own_folder=(sh -c 'cd "$1/$MEGATRON_RANK" && shift && exec "$@"' sh "$work")
apart=("$launch" --ranks=4 -- "${in_own_folder[@]}" "${run[@]}"
       "--set=parallel.topology_file=machines")
"${apart[@]}" > "$work/log" 2>&1
expect "slow cards between machines" "rank order: .*[( ]pp [0-9.]* ms between nodes" "$work/log"
expect "processes agree" "iteration        2/" "$work/log"
# Fast cards take gradients, since a step has fewer of their messages than of the stages'.
sed -i 's/rail_gb_per_s: 0.001/rail_gb_per_s: 48/' "$work/3/machines"
if "${apart[@]}" > "$work/log" 2>&1; then
  echo "FAILED: ranks with other orders trained" >&2
  exit 1
fi
expect "other shapes are refused" "read different shapes of the machines" "$work/log"
echo "$passed passed, 0 failed"
