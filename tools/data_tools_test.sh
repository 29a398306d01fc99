#!/bin/bash
# Runs the data programs as a user does: stories are written, preprocessed, inspected, interrupted,
# damaged.
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
"$tools/make_stories" --bytes=300000 --questions=conversations --output=questions.jsonl ||
  fail "no questions"
turn='{"role": "user", "content": "[^"]*?"}, {"role": "assistant", "content": "[A-Za-z]*"}'
conversation="{\"messages\": \\[$turn, $turn, $turn\\]}"
[ "$(grep -cx "$conversation" questions.jsonl)" = "$(wc -l <stories.jsonl)" ] || fail "other lines"
rm questions.jsonl
"$tools/make_stories" --bytes=1 --questions=texts |
  grep -qx '{"text": "User: [^"]*?\\nAssistant: [A-Za-z]*"}' || fail "no texts"
expect_code 20 'neither' "$tools/make_stories" --questions=some
"$tools/make_stories" --bytes=1 --sentences=3 | grep -qxE '\{"text": "([^.]*\.){3}"\}' || fail "no short story"
expect_code 20 'sentences=1 is not from 2 to 6' "$tools/make_stories" --sentences=1
[[ $(ls) == $'output\nstories.jsonl' ]] || fail "other files: $(ls)"

# A file and stdin, one worker and three give the same bytes.
expect_code 0 'one_text_document' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=one --append_eod --workers=1
"$tools/preprocess_data" --input=- --output_prefix=three --append_eod --workers=3 < stories.jsonl 2> /dev/null ||
  fail "reading stdin"
cmp one_text_document.bin three_text_document.bin || fail "workers change the tokens"
cmp one_text_document.idx three_text_document.idx || fail "workers change the index"

# The documents are the stories.
first="$(head -1 stories.jsonl | sed 's/{"text": "//; s/"}$//')"
expect_code 0 "$first<|endoftext|>" "$tools/inspect_dataset" one_text_document --verify --tokenizer_type=ByteLevel
grep -q "documents    $(wc -l < stories.jsonl)" output || fail "number of documents: $(cat output)"
grep -q "verified: .* vocabulary of 257" output || fail "not verified: $(cat output)"
grep -q "###" output || fail "no histogram: $(cat output)"
fingerprint="$(sed -n 's/^fingerprint *//p' output)"
expect_code 0 '^[0-9]* [0-9]* [0-9]* ' "$tools/inspect_dataset" one_text_document --fingerprint="$fingerprint"
expect_code 0 '' "$tools/inspect_dataset" one_text_document --fingerprint="${fingerprint^^}"
expect_code 20 'eight hexadecimal digits' "$tools/inspect_dataset" one_text_document --fingerprint=12345
expect_code 20 'first=-1 is negative' "$tools/inspect_dataset" one_text_document --first=-1
expect_code 20 'documents=-1 is negative' "$tools/inspect_dataset" one_text_document --documents=-1
expect_code 20 'max_tokens=-1 is negative' "$tools/inspect_dataset" one_text_document --max_tokens=-1
expect_code 21 "$fingerprint, not 12345678" "$tools/inspect_dataset" one_text_document --fingerprint=12345678
expect_code 0 'dataset      one_text_document$' "$tools/inspect_dataset" one_text_document.bin
expect_code 0 'dataset      one_text_document$' "$tools/inspect_dataset" one_text_document.idx
expect_code 21 'outside a vocabulary of 100' "$tools/inspect_dataset" one_text_document --verify \
  --tokenizer_type=NullTokenizer --vocab_size=100 --documents=0

# A vocabulary that the test writes itself.
printf '[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ncat\n##s\n' > vocab.txt
echo '{"text": "Cats cat dogs"}' > cats.jsonl
expect_code 0 '' "$tools/preprocess_data" --input=cats.jsonl --output_prefix=cats --tokenizer_type=BertWordPieceLowerCase --vocab_file=vocab.txt
expect_code 0 '^5 6 5 1$' "$tools/inspect_dataset" cats_text_document

# GPT-2's vocabulary, if it is available.
if [[ -n ${MEGATRON_TEST_DATA:-} ]]; then
  gpt2=(--tokenizer_type=GPT2BPETokenizer "--vocab_file=$MEGATRON_TEST_DATA/gpt2-vocab.json" "--merge_file=$MEGATRON_TEST_DATA/gpt2-merges.txt")
  expect_code 0 '' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=gpt2 --append_eod "${gpt2[@]}"
  expect_code 0 "$first<|endoftext|>" "$tools/inspect_dataset" gpt2_text_document --verify "${gpt2[@]}"
  grep -q "verified: .* vocabulary of 50257" output || fail "not verified: $(cat output)"
else
  echo "MEGATRON_TEST_DATA is not set: GPT-2's vocabulary was not tried"
fi

# Bad lines.
{ cat stories.jsonl; echo '{"text": 5}'; } > bad.jsonl
expect_code 21 "bad.jsonl, line $(wc -l < bad.jsonl): " "$tools/preprocess_data" --input=bad.jsonl --output_prefix=bad
[[ $(echo bad_*) == 'bad_*' ]] || fail "a failed run left files"
expect_code 0 '1 of .* lines were skipped: 1 wrong type' "$tools/preprocess_data" --input=bad.jsonl --output_prefix=bad --bad_lines=skip
grep -q 'documents/s, .* MB/s, .* tokens/s' output || fail "no speed: $(cat output)"
cmp bad_text_document.idx <("$tools/preprocess_data" --input=stories.jsonl --output_prefix=good > /dev/null 2>&1; cat good_text_document.idx) ||
  fail "a bad line changed the good ones"
expect_code 21 'bad.jsonl, line 1: it is longer' "$tools/preprocess_data" --input=bad.jsonl --output_prefix=bad --max_line_bytes=20

# A form feed is not white space in JSON.
printf '{"text": "a"}\f\n' > feed.jsonl
expect_code 21 'line 1: column 14: something follows' "$tools/preprocess_data" --input=feed.jsonl --output_prefix=bad
printf '\f\n' > feed.jsonl
expect_code 21 'line 1: column 1: ' "$tools/preprocess_data" --input=feed.jsonl --output_prefix=bad

# A line without an end is reported at once if it fails the run; if bad lines are skipped, Ctrl-C
# ends the wait.
expect_code 21 'zero, line 1: it is longer' timeout 60 "$tools/preprocess_data" --input=/dev/zero --output_prefix=zero --max_line_bytes=1000000
expect_code 21 'zero, line 1: a document of more than' timeout 60 "$tools/txt_to_jsonl" --input=/dev/zero --output=zero.jsonl --max_document_bytes=1000000
for run in "preprocess_data --bad_lines=skip --max_line_bytes=1000000 --output_prefix=zero" \
  "txt_to_jsonl --max_document_bytes=1000000000000 --output=zero.jsonl"; do
  # shellcheck disable=SC2086
  while sleep 0.01; do head -c 100000 /dev/zero || break; done 2> /dev/null | exec "$tools/"$run --input=- > interrupted 2>&1 &
  pid=$!
  for _ in {1..100}; do
    [[ $(echo zero*) == *.partial* ]] && break
    sleep 0.1
  done
  sleep 0.5
  kill -TERM "$pid"
  wait "$pid"
  code=$?
  [[ $code == 130 ]] || fail "$run at an endless line: code $code: $(cat interrupted)"
  [[ $(echo zero*) == 'zero*' ]] || fail "$run left $(echo zero*)"
done

# Inputs that are compressed, in pieces, given by pattern and by name give the same bytes.
half=$(($(wc -l < stories.jsonl) / 2))
mkdir shards
head -n "$half" stories.jsonl | gzip > shards/a.jsonl.gz
tail -n "+$((half + 1))" stories.jsonl > shards/b.jsonl
expect_code 0 '' "$tools/preprocess_data" --input='shards/*.jsonl*' --output_prefix=shards/whole --append_eod
cmp one_text_document.bin shards/whole_text_document.bin || fail "compression or patterns change the tokens"
cmp one_text_document.idx shards/whole_text_document.idx || fail "compression or patterns change the index"
expect_code 0 '' "$tools/preprocess_data" --input=shards/a.jsonl.gz,shards/b.jsonl --output_prefix=list --append_eod
cmp one_text_document.idx list_text_document.idx || fail "a list of inputs changes the index"
head -c 1000 shards/a.jsonl.gz > shards/cut.jsonl.gz
expect_code 21 'cut off' "$tools/preprocess_data" --input=shards/cut.jsonl.gz --output_prefix=cut --bad_lines=skip
[[ $(echo cut_*) == 'cut_*' ]] || fail "a cut input left $(echo cut_*)"

# The two halves, merged, are the whole dataset.
mkdir halves
expect_code 0 '' "$tools/preprocess_data" --input=shards/a.jsonl.gz --output_prefix=halves/a --append_eod
expect_code 0 '' "$tools/preprocess_data" --input=shards/b.jsonl --output_prefix=halves/b --append_eod
expect_code 0 'merged' "$tools/merge_datasets" --input=halves --output_prefix=merged
cmp one_text_document.bin merged.bin || fail "merging changes the tokens"
cmp one_text_document.idx merged.idx || fail "merging changes the index"
expect_code 0 '' "$tools/merge_datasets" --output_prefix=merged halves/a_text_document halves/b_text_document.idx
cmp one_text_document.idx merged.idx || fail "merging prefixes changes the index"
expect_code 20 'same time' "$tools/merge_datasets" --input=merged,halves/a_text_document --output_prefix=merged
cp -r halves whole
expect_code 0 '' "$tools/merge_datasets" --input=whole --output_prefix=whole/merged
expect_code 20 "'whole/merged' can't be read and written at the same time" "$tools/merge_datasets" --input=whole/. --output_prefix=whole/merged
cmp one_text_document.idx whole/merged.idx || fail "a refused merge touched the older dataset"
printf 'xx' >> halves/b_text_document.bin
expect_code 21 'b_text_document.bin. has .*belong to no sequence' "$tools/merge_datasets" --input=halves --output_prefix=merged
expect_code 21 'neither a folder nor a dataset' "$tools/merge_datasets" --input=quarters --output_prefix=merged
rm halves/b_text_document.idx
expect_code 21 'unfinished' "$tools/merge_datasets" --input=halves --output_prefix=merged
cmp one_text_document.idx merged.idx || fail "a failed merge touched the older dataset"

# Sentences.
expect_code 0 'stories_text_sentence' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=stories --split_sentences
expect_code 0 'sequences in a document' "$tools/inspect_dataset" stories_text_sentence --tokenizer_type=ByteLevel --verify
grep -q "^${first%%. *}\.$" output || fail "the first sentence stands on no line of its own: $(cat output)"
expect_code 20 'split_sentences' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=x --keep_newlines

# Text with separators, as in TinyStories, is converted to JSON lines and back.
sed 's/{"text": "//; s/"}$/\n<|endoftext|>/' stories.jsonl > stories.txt
expect_code 0 '' "$tools/txt_to_jsonl" --input=stories.txt --output=back.jsonl
cmp stories.jsonl back.jsonl || fail "text to JSON lines"
"$tools/txt_to_jsonl" --input=- < stories.txt 2> /dev/null | cmp - stories.jsonl || fail "text from stdin to stdout"
expect_code 21 'a document of more than 1000 bytes' "$tools/txt_to_jsonl" --input=stories.txt --separator=@@ --max_document_bytes=1000 --output=x.jsonl
[[ ! -e x.jsonl && ! -e x.jsonl.partial ]] || fail "a failed run left files"
expect_code 20 "stories.txt' can't be read and written" "$tools/txt_to_jsonl" --input=stories.txt --output=./stories.txt
expect_code 20 'input is given twice' "$tools/txt_to_jsonl" --input=stories.txt --input=stories.txt --output=x.jsonl
mkfifo slow
"$tools/txt_to_jsonl" --input=slow --output=held.jsonl 2> /dev/null &
writer=$!
exec 9> slow
for _ in {1..100}; do [[ -e held.jsonl.partial ]] && break; sleep 0.1; done
expect_code 23 'another process is writing' "$tools/txt_to_jsonl" --input=stories.txt --output=held.jsonl
expect_code 23 'another process is writing' "$tools/make_stories" --bytes=1 --output=held.jsonl
cat stories.txt >&9
exec 9>&-
wait "$writer" || fail "a second writer disturbed the first"
cmp held.jsonl stories.jsonl || fail "a second writer tore the first one's file"
rm slow held.jsonl
(ulimit -f 10; expect_code 23 'File too large' "$tools/txt_to_jsonl" --input=stories.txt --output=x.jsonl) || exit 1
expect_code 20 'separator_place' "$tools/txt_to_jsonl" --input=stories.txt --separator_place=here

# A full disk (every write to this device fails like that), and a folder in which no file can be
# made.
ln -s /dev/full full_text_document.bin.partial
expect_code 23 'No space left on device' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=full
[[ $(echo full_*) == 'full_*' ]] || fail "a full disk left $(echo full_*)"
ln -s /dev/full full.bin.partial
expect_code 23 'No space left on device' "$tools/merge_datasets" --output_prefix=full one_text_document
ln -s /dev/full full.jsonl.partial
expect_code 23 'No space left on device' "$tools/txt_to_jsonl" --input=stories.txt --output=full.jsonl
[[ $(echo full*) == 'full*' ]] || fail "a full disk left $(echo full*)"
expect_code 23 '/proc/x' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=/proc/x

# An input without one document.
: > empty.jsonl
expect_code 21 'there is no document in the input; lines read: 0' "$tools/preprocess_data" --input=empty.jsonl --output_prefix=empty
grep -q 'Nothing was written' output || fail "not told that nothing was written: $(cat output)"
! grep -q 'bad_lines' output || fail "a remedy that is none: $(cat output)"
echo '{' > broken.jsonl
expect_code 21 'no document in the input; lines read: 1; broken.jsonl, line 1: ' "$tools/preprocess_data" --input=broken.jsonl --output_prefix=empty \
  --bad_lines=skip
[[ $(echo empty_*) == 'empty_*' ]] || fail "an input without documents left $(echo empty_*)"

# Wrong flags and files.
expect_code 20 "key 'text' stands twice" "$tools/preprocess_data" --input=stories.jsonl --output_prefix=x --json_keys=text,text
expect_code 20 "key '.xff' is not UTF-8" "$tools/preprocess_data" --input=stories.jsonl --output_prefix=x --json_keys=$'\xff'
expect_code 23 'name too long' "$tools/preprocess_data" --input=stories.jsonl --output_prefix="$(printf 'x%.0s' {1..300})"
expect_code 20 'prefx' "$tools/preprocess_data" --output_prefx=x
expect_code 20 '--input is missing' "$tools/preprocess_data"
expect_code 20 'ByteLevel' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=x --tokenizer_type=Words
expect_code 20 'merge_file means nothing to ByteLevel' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=x --merge_file=x
expect_code 20 'GPT2BPETokenizer needs a merge_file' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=x \
  --tokenizer_type=GPT2BPETokenizer --vocab_file=x
expect_code 20 'vocab.json' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=x --tokenizer_type=GPT2BPETokenizer \
  --vocab_file=vocab.json --merge_file=merges.txt
expect_code 20 'bytes' "$tools/make_stories" --bytes=many
expect_code 21 'nothing.jsonl' "$tools/preprocess_data" --input=nothing.jsonl --output_prefix=x
expect_code 21 'nothing.txt' "$tools/txt_to_jsonl" --input=nothing.txt --output=x
expect_code 23 "no folder '/nowhere'" "$tools/preprocess_data" --input=stories.jsonl --output_prefix=/nowhere/x
expect_code 23 '/nowhere' "$tools/txt_to_jsonl" --input=stories.txt --output=/nowhere/x
expect_code 21 'nothing.idx' "$tools/inspect_dataset" nothing

# Anything with an output's name that is not a file is left alone.
mkdir odd_text_document.idx
expect_code 23 'odd_text_document.idx. is no regular file' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=odd
rmdir odd_text_document.idx && ln -s elsewhere odd_text_document.bin
expect_code 23 'odd_text_document.bin. is no regular file' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=odd
[[ $(echo odd*) == odd_text_document.bin && -L odd_text_document.bin ]] || fail "a refused output left $(echo odd*)"
expect_code 0 'output_prefix' "$tools/preprocess_data" --help

# A damaged index.
cp one_text_document.bin cut.bin
head -c 1000 one_text_document.idx > cut.idx
expect_code 21 "'cut.idx', offset 18" "$tools/inspect_dataset" cut

# Ctrl-C while it waits for input: no file looks finished, and the older dataset is untouched.
mkfifo pipe
"$tools/preprocess_data" --input=pipe --output_prefix=one > interrupted 2>&1 &
pid=$!
exec 3> pipe
cat stories.jsonl >&3
for _ in {1..100}; do
  [[ -e one_text_document.bin.partial ]] && break
  sleep 0.1
done
# Two at once would spoil each other's files.
expect_code 23 'another process' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=one
kill -TERM "$pid"
wait "$pid"
code=$?
exec 3>&-
[[ $code == 130 ]] || fail "interrupted: code $code: $(cat interrupted)"
grep -q 'nothing was written' interrupted || fail "not told that nothing was written: $(cat interrupted)"
cmp one_text_document.bin three_text_document.bin || fail "the interrupted run touched the older dataset"
[[ ! -e one_text_document.bin.partial && ! -e one_text_document.lock ]] || fail "the interrupted run left its files"
echo PASSED
