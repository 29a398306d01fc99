#!/bin/bash
# Stories through the programs as a user runs them: written, preprocessed, inspected, interrupted, damaged.
set -u
readonly tools="$PWD/tools"
unset BUILD_WORKING_DIRECTORY
cd "$TEST_TMPDIR" || exit 1

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# expect_code CODE PATTERN COMMAND...: the command ends with CODE, and its output has PATTERN.
expect_code() {
  local code="$1" pattern="$2"
  shift 2
  "$@" > output 2>&1
  local got=$?
  [[ $got == "$code" ]] || fail "$* ended with $got, not $code: $(cat output)"
  [[ -z $pattern ]] || grep -q -e "$pattern" output || fail "$* did not say '$pattern': $(cat output)"
}

expect_code 0 'nats per byte' "$tools/make_stories" --print_entropy
expect_code 0 "" "$tools/make_stories" --bytes=300000 --output=stories.jsonl
"$tools/make_stories" --bytes=300000 | cmp - stories.jsonl || fail "stdout and --output differ"
[[ $(ls) == $'output\nstories.jsonl' ]] || fail "other files: $(ls)"

# A file and stdin, one worker and three: the same bytes.
expect_code 0 'one_text_document' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=one --append_eod --workers=1
"$tools/preprocess_data" --input=- --output_prefix=three --append_eod --workers=3 < stories.jsonl 2> /dev/null ||
  fail "reading stdin"
cmp one_text_document.bin three_text_document.bin || fail "workers change the tokens"
cmp one_text_document.idx three_text_document.idx || fail "workers change the index"

# The documents are the stories.
first="$(head -1 stories.jsonl | sed 's/{"text": "//; s/"}$//')"
expect_code 0 "$first<|endoftext|>" "$tools/inspect_dataset" one_text_document --verify
grep -q "documents  $(wc -l < stories.jsonl)" output || fail "number of documents: $(cat output)"
grep -q "verified" output || fail "not verified: $(cat output)"
expect_code 0 'dataset    one_text_document$' "$tools/inspect_dataset" one_text_document.bin
expect_code 0 'dataset    one_text_document$' "$tools/inspect_dataset" one_text_document.idx
expect_code 21 'outside a vocabulary of 100' "$tools/inspect_dataset" one_text_document --verify \
  --tokenizer_type=NullTokenizer --vocab_size=100 --documents=0

# Bad lines.
{ cat stories.jsonl; echo '{"text": 5}'; } > bad.jsonl
expect_code 21 "bad.jsonl, line $(wc -l < bad.jsonl): " "$tools/preprocess_data" --input=bad.jsonl --output_prefix=bad
[[ ! -e bad_text_document.bin && ! -e bad_text_document.bin.partial ]] || fail "a failed run left files"
expect_code 0 '1 of .* lines were skipped' "$tools/preprocess_data" --input=bad.jsonl --output_prefix=bad --bad_lines=skip

# An input without one document.
: > empty.jsonl
expect_code 21 'empty.jsonl, there is no document in the input; lines read: 0' "$tools/preprocess_data" --input=empty.jsonl --output_prefix=empty
grep -q 'Nothing was written' output || fail "not told that nothing was written: $(cat output)"
! grep -q 'bad_lines' output || fail "a remedy that is none: $(cat output)"
echo '{' > broken.jsonl
expect_code 21 'no document in the input; lines read: 1; line 1: ' "$tools/preprocess_data" --input=broken.jsonl --output_prefix=empty \
  --bad_lines=skip
[[ $(echo empty_*) == 'empty_*' ]] || fail "an input without documents left $(echo empty_*)"

# Wrong flags and files.
expect_code 20 'prefx' "$tools/preprocess_data" --output_prefx=x
expect_code 20 '--input is missing' "$tools/preprocess_data"
expect_code 20 'ByteLevel' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=x --tokenizer_type=Words
expect_code 20 'bytes' "$tools/make_stories" --bytes=many
expect_code 23 'nothing.jsonl' "$tools/preprocess_data" --input=nothing.jsonl --output_prefix=x
expect_code 23 '/nowhere' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=/nowhere/x
expect_code 23 'nothing.idx' "$tools/inspect_dataset" nothing
expect_code 0 'output_prefix' "$tools/preprocess_data" --help

# A damaged index.
cp one_text_document.bin cut.bin
head -c 1000 one_text_document.idx > cut.idx
expect_code 21 "'cut.idx', offset 18" "$tools/inspect_dataset" cut

# Ctrl-C while it waits for input: no file looks finished, and the older dataset is untouched.
mkfifo pipe
"$tools/preprocess_data" --input=pipe --output_prefix=one > interrupted 2>&1 &
readonly pid=$!
exec 3> pipe
cat stories.jsonl >&3
# A batch of a megabyte must be full before anything is tokenized.
for _ in 1 2 3 4 5 6 7 8 9 10; do cat stories.jsonl >&3; done
kill -TERM "$pid"
cat stories.jsonl stories.jsonl stories.jsonl stories.jsonl stories.jsonl stories.jsonl stories.jsonl >&3 2> /dev/null
exec 3>&-
wait "$pid"
code=$?
[[ $code == 130 ]] || fail "interrupted: code $code: $(cat interrupted)"
cmp one_text_document.bin three_text_document.bin || fail "the interrupted run touched the older dataset"
[[ ! -e one_text_document.bin.partial ]] || fail "the interrupted run left its file"
echo PASSED
