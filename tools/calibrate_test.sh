#!/bin/bash
# Measures this machine in a second, and predicts a run on it, as a user does.
set -u
readonly tools="$PWD/tools"
unset BUILD_WORKING_DIRECTORY
cd "$TEST_TMPDIR" || exit 1

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

"$tools/calibrate" --seconds=1 --name=mine > output 2>&1 || fail "calibrate: $(cat output)"
grep -q "^mine: each of " output || fail "calibrate did not sum up: $(cat output)"

cat > rows.csv <<END
layers,hidden,vocab,gpus,dp,tp,seq,gbs
4,256,512,4,2,2,256,8
END
"$tools/plan" --facts=hardware.textproto --kernels=kernels.csv --predict=rows.csv \
  --output=predicted.csv --assume=gpu=mine,implementation=megatron_cc,dtype=fp32 > output 2>&1 ||
  fail "plan: $(cat output)"
grep -q '^4,256,512,4,2,2,256,8,[0-9.]' predicted.csv || fail "no prediction: $(cat predicted.csv)"

"$tools/calibrate" --seconds=0 > output 2>&1
[[ $? == 20 ]] || fail "--seconds=0 was taken: $(cat output)"
exit 0
