#!/usr/bin/env bash
# Tests launch --hostfile: what ranks get on each host, that failures and signals reach all hosts,
# that no process stays behind, and that no other run gets the directory of one that is started
# again. A script stands in for ssh.
#
# Usage: launch_hosts_test.sh LAUNCH PRETRAIN_GPT
set -eu
launch=$(readlink -f "$1")
pretrain=$(readlink -f "$2")
work=$(mktemp -d)
cd "$work"
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  tail -n 50 out >&2 || true
  exit 1
}

cat > ssh <<'SCRIPT'
#!/bin/sh
# This stands for sshd: the command goes to a shell of another session; its end is not the end of the command.
echo "$@" >> ssh_arguments
[ "$1" != unreachable ] || { echo "no route to unreachable" >&2; exit 255; }
exec setsid --wait sh -c "$2"
SCRIPT
chmod +x ssh
printf '# the cluster\nworker-1 slots=1\n\nworker-2 slots=2  # the big one\n' > hosts
flags=(--hostfile=hosts --ssh="$work/ssh" --master_addr=127.0.0.1)
run() { "$launch" "${flags[@]}" "$@" > out 2>&1; }
start() { "$launch" "${flags[@]}" "$@" > out 2>&1 & pid=$!; }
port() { echo $((20000 + RANDOM % 10000)); }

export NCCL_DEBUG=WARN OTHER="two words" MEGATRON_JOB_SECRET=never
run --export=OTHER -- sh -c 'echo $MEGATRON_RANK of $MEGATRON_WORLD_SIZE, $MEGATRON_LOCAL_RANK of \
$MEGATRON_LOCAL_WORLD_SIZE, $MASTER_ADDR $OTHER $NCCL_DEBUG; pwd; echo secret ${#MEGATRON_JOB_SECRET}; cat' ||
  fail "three ranks on two hosts: $?"
unset MEGATRON_JOB_SECRET
for line in '[rank 0] 0 of 3, 0 of 1, 127.0.0.1 two words WARN' \
            '[rank 2] 2 of 3, 1 of 2, 127.0.0.1 two words WARN' \
            "[rank 1] $work" '[rank 2] secret 64'; do
  grep -qxF "$line" out || fail "missing: $line"
done
grep -qE '[0-9a-f]{64}' ssh_arguments && fail "the secret is on a command line"

run --include=worker-2:1 -- sh -c 'echo devices $CUDA_VISIBLE_DEVICES' || fail "one slot"
grep -qxF '[rank 0] devices 1' out || fail "the slot that was chosen"

code=0
"$launch" --hostfile=nowhere -- true > out 2>&1 || code=$?
[ "$code" = 20 ] || fail "a hostfile that is not there gives $code"

code=0
run -- sh -c 'test $MEGATRON_RANK = 2 && exit 21; sleep 0.2; exit 30' || code=$?
[ "$code" = 21 ] || fail "the code of the cause, not $code"
grep -q 'rank 2 ended with code 21' out || fail "who it was"

printf 'unreachable slots=1\nworker-2 slots=1\n' > hosts
code=0
run --grace=1s -- sleep 60 || code=$?
[ "$code" = 255 ] || fail "an unreachable host gives $code"
grep -q 'no route to unreachable' out || fail "what ssh said"
grep -q 'host unreachable ended with code 255' out || fail "which host"

printf 'a slots=1\n-oProxyCommand=touch${IFS}owned slots=1\n' > hosts
code=0
run -- true || code=$?
[ "$code" = 20 ] || fail "a hostile hostfile gives $code"
grep -q 'hosts:2: ' out || fail "its line"
[ ! -e owned ] || fail "it was heeded"

printf 'worker-1 slots=1\nworker-2 slots=1\n' > hosts
ranks='echo $$ > pid$MEGATRON_RANK; trap "exit 10" TERM; while true; do sleep 0.05; done'
both_run() {
  for _ in $(seq 200); do
    [ -s pid0 ] && [ -s pid1 ] && return
    sleep 0.05
  done
  fail "the ranks did not start"
}
both_end() {
  for _ in $(seq 200); do
    kill -0 "$(cat pid0)" 2>/dev/null || kill -0 "$(cat pid1)" 2>/dev/null || return 0
    sleep 0.05
  done
  fail "ranks stay after $*"
}
start -- sh -c "$ranks"
both_run
kill -TERM "$pid"
code=0
wait "$pid" || code=$?
[ "$code" = 10 ] || fail "after SIGTERM: $code"
both_end SIGTERM
rm pid0 pid1
start -- sh -c "$ranks"
both_run
kill -KILL "$pid"
both_end SIGKILL

# The spare takes the place of a host that cannot be reached, and then of one whose rank is killed.
printf 'worker-1 slots=1\nunreachable slots=1\nspare-1 slots=1\nspare-2 slots=2\n' > hosts
rm -f ssh_arguments
run --num_nodes=2 --restarts=3 --grace=1s -- sh -c 'echo start $MEGATRON_RESTART_COUNT: $MEGATRON_RESTART_REASON
[ "$MEGATRON_RESTART_COUNT.$MEGATRON_RANK" = 1.1 ] && kill -9 $$
[ "$MEGATRON_RESTART_COUNT" = 2 ] || sleep 60' || fail "restarts: $?"
grep -q '^launch: host unreachable ended with code 255.*; starting again in 1s (1 of 3)$' out ||
  fail "why it started again"
reason='host spare-1 ended with code 137 (rank 1 was ended by signal 9 (Killed)); after that host worker-1 did not end'
grep -q "^\[rank 1\] start 2: $reason" out || fail "the reason that ranks get"
[ "$(cut -d ' ' -f 1 ssh_arguments | sort | uniq -c | tr -s ' \n' ' ')" = \
  ' 1 spare-1 1 spare-2 1 unreachable 3 worker-1 ' ] || fail "the hosts: $(cat ssh_arguments)"

# A host that fails twice and has no spare is left out. The program refuses two ranks.
printf 'worker-1 slots=1\nworker-2 slots=1\nunreachable slots=1\n' > hosts
run --restarts=3 --min_elastic_nodes=1 --grace=1s -- sh -c 'echo start of $MEGATRON_WORLD_SIZE
[ "$MEGATRON_WORLD_SIZE" = 2 ] && exit 20
[ "$MEGATRON_WORLD_SIZE" = 1 ] || sleep 60' || fail "fewer hosts: $?"
grep -q '^launch: 2 of 3 are refused; trying 1$' out || fail "two hosts"
grep -qxF '[rank 0] start of 1' out || fail "one host"
grep -q '(3 of 3)' out && fail "too many starts"
code=0
run --min_elastic_nodes=1 -- true || code=$?
[ "$code" = 20 ] || fail "--min_elastic_nodes without --restarts gives $code"

# A host that is reached again is taken back; the job is asked to end for it.
sed -i 's/^exec/[ "$1" != comeback ] || [ -e is_back ] || exit 255\nexec/' ssh
printf 'worker-1 slots=1\ncomeback slots=1\n' > hosts
run --restarts=3 --min_elastic_nodes=1 --rejoin_interval=100ms --grace=1s -- sh -c '
[ "$MEGATRON_WORLD_SIZE" = 1 ] && touch is_back && trap "exit 10" TERM
[ -e is_back ] || sleep 60
[ "$MEGATRON_WORLD_SIZE" = 2 ] || while true; do sleep 0.05; done
echo together' || fail "a host that comes back: $?"
grep -q '^launch: host comeback answers again; starting with it$' out || fail "it answers again"
grep -qxF '[rank 1] together' out || fail "both hosts"

# A rank that fails twice is left out on one machine.
code=0
"$launch" --ranks=3 --restarts=3 --min_ranks=2 --grace=1s -- sh -c 'echo $CUDA_VISIBLE_DEVICES: start of $MEGATRON_WORLD_SIZE
[ "$MEGATRON_WORLD_SIZE" = 2 ] && exit 0
[ "$MEGATRON_RANK" = 1 ] && kill -9 $$
sleep 60' > out 2>&1 || code=$?
[ "$code" = 0 ] || fail "fewer ranks: $code"
grep -qxF '[rank 1] 0,2: start of 2' out || fail "the places of two ranks"

code=0
run --num_nodes=1 --restarts=3 -- sh -c 'exit 22' || code=$?
[ "$code" = 22 ] || fail "a damaged checkpoint gives $code"
grep -q 'starting again' out && fail "a damaged checkpoint is tried again"
printf 'worker-1 slots=1\nworker-2 slots=1\n' > hosts

cat > run.textproto <<'CONFIG'
model { num_layers: 2 hidden_size: 32 num_attention_heads: 2 seq_length: 64 }
optimizer { lr: 3e-3 }
train { micro_batch_size: 2 global_batch_size: 4 train_iters: 4 }
data { stories { num_bytes: 100000 } }
parallel { pipeline_model_parallel_size: 2 }
checkpoint { save: "alone" }
CONFIG
"$pretrain" --config=run.textproto > out 2>&1 || fail "threads: $?"
run --master_port="$(port)" -- "$pretrain" --config=run.textproto '--set=checkpoint.save="hosts_run"' ||
  fail "two hosts: $?"
for shard in 0 1; do
  cmp {alone,hosts_run}/iter_0000004/shard_0000${shard}_of_00002.bin || fail "shard $shard differs"
done

# Nobody else gets the directory of a run while launch waits to start it again.
endless=(--config=run.textproto --set=train.train_iters=100000 '--set=checkpoint.save="kept"')
by_hand() {  # gives the code of a run of one process there
  code=0
  "$pretrain" "${endless[@]}" --set=train.exit_interval=1 > by_hand 2>&1 || code=$?
}
until_told() {  # $1: a text of the output
  for _ in $(seq 1200); do
    grep -q "$1" out && return
    sleep 0.05
  done
  fail "nothing says '$1'"
}
rm -f pid0 pid1
start --restarts=3 --grace=1s --master_port="$(port)" -- \
  sh -c 'echo $$ > pid$MEGATRON_RANK; exec "$0" "$@"' "$pretrain" "${endless[@]}"
until_told 'first step done'
kill -KILL "$(cat pid1)"
until_told 'starting again in 1s (1 of 3)'
by_hand
[ "$code" = 20 ] || fail "another run in the directory of a run that waits gives $code: $(cat by_hand)"
grep -q "another run has .*kept: that of launch (process $pid on " by_hand || fail "$(cat by_hand)"
until_told 'restart 1: '
grep -q 'megatron claims' out && fail "a line that is meant for launch is printed"
# A launcher that is killed leaves no claim.
kill -KILL "$pid"
both_end 'SIGKILL of a run with a claim'
by_hand
[ "$code" = 0 ] || fail "a claim of a killed launcher gives $code: $(cat by_hand)"

# A restart does not make a directory anew that has vanished. The run saves nothing before its end.
rm -f out pid0 pid1
start --restarts=3 --grace=1s --master_port="$(port)" -- \
  sh -c 'echo $$ > pid$MEGATRON_RANK; exec "$0" "$@"' "$pretrain" --config=run.textproto \
  --set=train.train_iters=100000 '--set=checkpoint.save="here"'
until_told 'first step done'
for _ in $(seq 1200); do
  [ -s here/.launcher ] && break
  sleep 0.05
done
mv here elsewhere
kill -KILL "$(cat pid1)"
code=0
wait "$pid" || code=$?
[ "$code" = 23 ] || fail "a directory that has vanished gives $code"
grep -q 'here: the directory that this run had has vanished' out || fail "which directory"
echo "PASSED"
