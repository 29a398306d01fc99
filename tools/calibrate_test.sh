#!/bin/bash
# Measures this machine in a second, and predicts a run on it, as a user does.
set -u
readonly tools="$PWD/tools" pretrain_gpt="$PWD/megatron/train/pretrain_gpt"
unset BUILD_WORKING_DIRECTORY
cd "$TEST_TMPDIR" || exit 1

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# Small models are trained, to whose steps seven constants are fitted.
"$tools/calibrate" --seconds=1 --name=mine > output 2>&1 || fail "calibrate: $(cat output)"
grep -q '^fitted to 14 runs of reference models: measured_efficiency [0-9]' output ||
  fail "calibrate trained nothing: $(cat output)"
grep -q '^# fitted to 14 runs of reference models' hardware.textproto ||
  fail "the file doesn't say what it is fitted to: $(cat hardware.textproto)"
grep -q '^mixture  *dp2 ep2  *[1-3] ' output || fail "no table of reference runs: $(cat output)"
grep -q '^  turn_seconds: [0-9]' hardware.textproto ||
  fail "no turn of a rank was measured: $(cat hardware.textproto)"
grep -q '^  measured_efficiency: 1$' hardware.textproto &&
  fail "nothing was fitted: $(cat hardware.textproto)"

"$tools/calibrate" --seconds=1 --name=mine --train=false > output 2>&1 ||
  fail "calibrate: $(cat output)"
grep -q 'fitted' output hardware.textproto && fail "something was fitted: $(cat output)"
grep -q "^mine: each of " output || fail "calibrate did not sum up: $(cat output)"

# The largest shapes are left out where the processor is too busy for them.
for row in state_space,forward,8,64,128 state_space,input_gradient,2,32,32 \
  gated_delta,forward,1,64,64 gated_delta,input_gradient,1,128,128; do
  grep -q "^mine,$row,0[.][0-9]" kernels.csv || fail "no $row: $(cat kernels.csv)"
done

# A disk is measured alone, and its figures stand beside what is there.
cp hardware.textproto disk.textproto
"$tools/calibrate" --disk=. --disk_ranks=2 --output=disk.textproto > output 2>&1 ||
  fail "calibrate --disk: $(cat output)"
grep -q '^disk.textproto: mine: [0-9.]* GB/s read and as many written .* for each of 2 ranks' output ||
  fail "no line about the disk: $(cat output)"
for field in disk_read_gb_per_s disk_write_gb_per_s disk_gb disk_directory; do
  grep -q "^  $field: [0-9\"]" disk.textproto || fail "no $field: $(cat disk.textproto)"
done
sed 1d disk.textproto | grep -v '^  disk_' | diff hardware.textproto - ||
  fail 'more than the disk has changed'
for wrong in --train=false --seconds=5 --disk_ranks=0 --name=nobody; do
  "$tools/calibrate" --disk=. --output=disk.textproto "$wrong" > output 2>&1
  [[ $? == 20 ]] || fail "--disk with $wrong was taken: $(cat output)"
done
"$tools/calibrate" --disk=nowhere --output=disk.textproto > output 2>&1 &&
  fail "a folder that is not there was measured: $(cat output)"
grep -q nowhere output || fail "the folder isn't named: $(cat output)"

# What forbids so long a file is named.
(ulimit -f 64; exec "$tools/calibrate" --disk=. --output=disk.textproto) > output 2>&1
[[ $? == 23 ]] || fail "a limit of files was taken: $(cat output)"
grep -q '(ulimit -f allows 65536)' output || fail "the limit isn't named: $(cat output)"

cat > rows.csv <<END
layers,hidden,vocab,gpus,dp,tp,seq,gbs
4,256,512,4,2,2,256,8
END
"$tools/plan/plan" --facts=hardware.textproto --kernels=kernels.csv --predict=rows.csv \
  --output=predicted.csv --assume=gpu=mine,implementation=megatron_cc,dtype=fp32 > output 2>&1 ||
  fail "plan: $(cat output)"
grep -q '^4,256,512,4,2,2,256,8,[0-9.]' predicted.csv || fail "no prediction: $(cat predicted.csv)"

"$tools/calibrate" --seconds=0 > output 2>&1
[[ $? == 20 ]] || fail "--seconds=0 was taken: $(cat output)"

# A run compares itself with its prediction, and two constants are fitted to it; the file keeps its
# header.
"$pretrain_gpt" --config=gpt_demo --set=checkpoint.save=run \
  --set=system.hardware_file=hardware.textproto --set=train.exit_interval=24 > output 2>&1 ||
  fail "pretrain_gpt: $(cat output)"
grep -q '^prediction: a step takes' output || fail "no comparison: $(cat output)"
# A machine that does other work is measured badly in a second. What this run has measured is
# replaced by what was predicted of it.
sed -i -e '/^  measured_seconds/d' -e 's/^  predicted_seconds: \(.*\)/&\n  measured_seconds: \1/' \
  run/prediction.textproto
sed 1d hardware.textproto | grep -v 'measured_efficiency\|step_seconds' > before
"$tools/calibrate" --refit=run > output 2>&1 || fail "calibrate --refit: $(cat output)"
grep -q '^hardware.textproto: measured_efficiency 1.000 (was 1.000), step_seconds .*from 20 steps of run' \
  output || fail "no line about the fit: $(cat output)"
grep -q '^# Written by tools:calibrate' hardware.textproto || fail "$(cat hardware.textproto)"
[[ $(head -1 hardware.textproto) == '# measured_efficiency and step_seconds are fitted to the run in run.' ]] ||
  fail "$(cat hardware.textproto)"
sed 1,2d hardware.textproto | grep -v 'measured_efficiency\|step_seconds' | diff before - ||
  fail 'more than two constants have changed'
cp hardware.textproto fitted.textproto

# What says nothing to fit is refused, and the file stays.
expect_refusal() {
  local pattern="$1"
  shift
  "$tools/calibrate" "$@" > output 2>&1
  [[ $? == 20 ]] || fail "$* was taken: $(cat output)"
  grep -q -e "$pattern" output || fail "$* did not say '$pattern': $(cat output)"
  cmp -s hardware.textproto fitted.textproto || fail "$* has changed the file"
}
expect_refusal 'disk is empty' --disk=
expect_refusal 'refit is empty' --refit=
expect_refusal 'refit is empty' --refit ''
expect_refusal 'name has no effect with --refit' --refit=run --name=other
expect_refusal 'nobody/prediction.textproto' --refit=nobody
echo PASSED
