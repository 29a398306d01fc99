#!/bin/bash
# Computes the order of samples ahead of time, as a user does.
set -u
readonly tools="$PWD/tools"
unset BUILD_WORKING_DIRECTORY
cd "$TEST_TMPDIR" || exit 1

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# expect_code CODE PATTERN FLAGS...: build_index ends with CODE, and its output has PATTERN.
expect_code() {
  local code="$1" pattern="$2"
  shift 2
  "$tools/build_index" "$@" > output 2>&1
  local got=$?
  [[ $got == "$code" ]] || fail "$* ended with $got, not $code: $(cat output)"
  grep -q -e "$pattern" output || fail "$* did not say '$pattern': $(cat output)"
}

"$tools/make_stories" --bytes=100000 --output=stories.jsonl || fail "make_stories"
"$tools/preprocess_data" --input=stories.jsonl --output_prefix=a --append_eod 2> /dev/null || fail "preprocess_data"
readonly flags=(--prefix=a_text_document --seq_length=64 --cache_dir=cache --num_samples=5000)

# The program prints three paths of files that exist, and the same paths when it loads them.
expect_code 0 'cache/[0-9a-f]\{32\}-GPTDataset-train-document_index.npy$' "${flags[@]}"
[[ $(wc -l < output) == 3 ]] || fail "not three lines: $(cat output)"
xargs ls < output > /dev/null || fail "a path leads nowhere"
cp output first
xargs md5sum < first > sums
expect_code 0 'shuffle_index.npy$' "${flags[@]}"
cmp first output || fail "other paths"
expect_code 0 'GPTDataset-valid-sample_index.npy$' "${flags[@]}" --part=valid

# The names of the token files do not matter, their contents do.
mkdir elsewhere && mv a_text_document.* elsewhere
expect_code 0 'train-sample_index' "${flags[@]}" --prefix=elsewhere/a_text_document.idx
cmp first output || fail "a moved dataset has another index"

# A torn file is replaced.
truncate -s -4 "$(head -1 first)"
expect_code 0 'building an index again' "${flags[@]}" --prefix=elsewhere/a_text_document
md5sum --quiet -c sums || fail "what was torn stayed so"

# Errors are reported.
expect_code 20 'prefix=DATASET' --seq_length=64 --cache_dir=cache
expect_code 20 'cache_dir=FOLDER' --prefix=a --seq_length=64
expect_code 20 'seq_length=TOKENS' --prefix=a --cache_dir=cache
expect_code 20 'expected train, valid or test' "${flags[@]}" --part=dev
expect_code 20 'split' "${flags[@]}" --split=1,2,3,4
expect_code 20 'no_such_flag' --no_such_flag=1
expect_code 20 'not enough for one sample' --prefix=elsewhere/a_text_document --seq_length=1000000 --cache_dir=cache
expect_code 21 'nowhere.idx' --prefix=nowhere --seq_length=64 --cache_dir=cache
expect_code 23 'is not kept in' "${flags[@]}" --prefix=elsewhere/a_text_document --cache_dir=stories.jsonl/cache
grep -q "error: the index could not be kept in 'stories.jsonl/cache' for the reason above" output || fail "no clear error: $(cat output)"
head -c 40 elsewhere/a_text_document.idx > cut.idx && : > cut.bin
expect_code 21 'cut.idx' "${flags[@]}" --prefix=cut
echo "passed"
