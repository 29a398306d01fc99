#!/bin/bash
# Kills preprocessing (kill -9) at fifty random moments: afterwards there is a whole dataset, the
# older one or the new one, or none; and the next run finishes and cleans up.
set -u
readonly tools="$PWD/tools"
unset BUILD_WORKING_DIRECTORY
cd "$TEST_TMPDIR" || exit 1

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

now() { date +%s%N; }

run() {  # $1: input
  exec "$tools/preprocess_data" --input="$1" --output_prefix=x --json_keys=text,title --workers=2 > /dev/null 2>&1
}

"$tools/make_stories" --bytes=500000 --seed=1 | sed 's/^{/{"title": "t", /' > old.jsonl
"$tools/make_stories" --bytes=500000 --seed=2 | sed 's/^{/{"title": "uu", /' > new.jsonl
begin=$(now)
(run new.jsonl) || fail "the run for comparison"
microseconds=$((($(now) - begin) / 1000))
for end in bin idx; do
  for key in text title; do mv "x_${key}_document.$end" "new_$key.$end"; done
done
(run old.jsonl) || fail "the older run"
for end in bin idx; do
  for key in text title; do cp "x_${key}_document.$end" "old_$key.$end"; done
done

same_as() { cmp -s "x_$2_document.bin" "$1_$2.bin" && cmp -s "x_$2_document.idx" "$1_$2.idx"; }

RANDOM=20240607
old=0 new=0 none=0
for i in {1..50}; do
  (run new.jsonl) &
  pid=$!
  # Some kills come a little after the usual end, which differs from run to run.
  moment=$(((RANDOM * 32768 + RANDOM) % (microseconds * 11 / 10)))
  sleep "$(printf '%d.%06d' $((moment / 1000000)) $((moment % 1000000)))"
  kill -9 "$pid" 2> /dev/null
  wait "$pid" 2> /dev/null
  for key in text title; do
    if [[ ! -e x_${key}_document.idx ]]; then
      none=$((none + 1))
    elif same_as old "$key"; then
      old=$((old + 1))
    elif same_as new "$key"; then
      new=$((new + 1))
    else
      fail "killed after $moment microseconds, round $i: x_${key}_document is neither the old nor the new dataset"
    fi
  done
  if [[ ! -e x_text_document.idx || ! -e x_title_document.idx ]] || ! same_as old text || ! same_as old title; then
    # The files that a killed run left do not disturb the next run.
    (run old.jsonl) || fail "round $i: the run after the killed one"
    same_as old text && same_as old title || fail "round $i: the run after the killed one wrote something else"
    [[ -z $(ls | grep -E 'partial|lock') ]] || fail "round $i: left over: $(ls)"
  fi
done
echo "of 100 datasets after kill -9, $old were the older one, $new the new one, $none missing"
[[ $old -gt 0 ]] || fail "no run was killed before its end"
echo PASSED
