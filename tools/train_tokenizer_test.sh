#!/bin/bash
# Trains vocabularies as a user does: on text and on JSON lines, with wrong flags and bad inputs.
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
train() { expect_code "$1" "$2" "$tools/train_tokenizer" "${@:3}"; }

"$tools/make_stories" --bytes=500000 --output=stories.jsonl || fail "no stories"
sed 's/{"text": "//; s/"}$//' stories.jsonl > stories.txt

# Text and JSON lines, one thread and three, several files and stdin.
train 0 '600 tokens, 343 merges' --input=stories.jsonl --json_keys=text --vocab_size=600 --output=one --threads=1
[[ $(ls one) == $'merges.txt\ntokenizer.json\ntokenizer.tiktoken\nvocab.json' ]] || fail "files: $(ls one)"
[[ $(wc -l < one/merges.txt) == 344 ]] || fail "merges: $(wc -l < one/merges.txt)"
grep -q '^{"<|endoftext|>":0,"!":1,' one/vocab.json || fail "vocabulary: $(head -c 100 one/vocab.json)"
split -n l/3 stories.jsonl part.
train 0 '' --input='part.*' --json_keys=text --vocab_size=600 --output=three --threads=3
diff -r one three || fail "threads or files change the result"
"$tools/train_tokenizer" --input=- --json_keys=text --vocab_size=600 --output=stdin < stories.jsonl 2> /dev/null || fail "reading stdin"
diff -r one stdin || fail "stdin changes the result"
# A line of a text ends in a line break, which is a word of its own and has nothing to merge with.
train 0 '' --input=stories.txt --vocab_size=600 --output=text/below
diff -r one text/below || fail "text and JSON lines differ"
# The texts of a list are apart: the frequent pair is "xy", and not "ab".
for _ in {1..9}; do echo '{"text": ["a", "b"]}'; done > lists.jsonl
for _ in {1..5}; do echo '{"text": "xy"}'; done >> lists.jsonl
train 0 '258 tokens, 1 merges' --input=lists.jsonl --json_keys=text --vocab_size=258 --output=lists
grep -qx 'x y' lists/merges.txt || fail "merges of lists: $(cat lists/merges.txt)"

# The trained files tokenize.
readonly trained=(--tokenizer_type=HuggingFaceTokenizer --tokenizer_model=one)
expect_code 0 'stories_text_document' "$tools/preprocess_data" --input=stories.jsonl --output_prefix=stories --append_eod "${trained[@]}"
expect_code 0 "$(head -c 60 stories.txt)" "$tools/inspect_dataset" stories_text_document --verify "${trained[@]}"

# Ranks for tiktoken are written if they mean the same as the merges.
[[ $(wc -l < one/tokenizer.tiktoken) == 599 && $(head -1 one/tokenizer.tiktoken) == 'IQ== 0' ]] || fail "ranks: $(head -2 one/tokenizer.tiktoken)"
train 0 '' --input=stories.txt --vocab_size=600 --split_pattern=tekken --special_tokens='<unk>,<s>,</s>' --output=tekken
for kind in "TikTokenizer --tokenizer_model=tekken/tokenizer.tiktoken --tiktoken_num_special_tokens=3" \
  "HuggingFaceTokenizer --tokenizer_model=tekken/tokenizer.json"; do
  # shellcheck disable=SC2086
  expect_code 0 '' "$tools/preprocess_data" --input=stories.jsonl --output_prefix="${kind:0:3}" --tokenizer_type=$kind
done
cmp Tik_text_document.bin Hug_text_document.bin || fail "ranks and merges make other tokens"
train 0 'no tokenizer.tiktoken: not every byte' --input=stories.txt --vocab_size=300 --all_bytes=false --output=fewer
[[ ! -e fewer/tokenizer.tiktoken ]] || fail "ranks without all bytes"

# An existing directory is left alone; a failed run leaves nothing.
cp -r one before
train 20 "'one' exists" --input=stories.txt --output=one
diff -r one before || fail "the existing directory changed"
printf 'good\nbad \xff\n' > bad.txt
train 21 'bad.txt, line 2: the line is not UTF-8' --input=stories.txt,bad.txt --output=bad
printf '{"text": "good"}\n\n{"txt": "bad"}\n' > bad.jsonl
train 21 'bad.jsonl, line 3: ' --input=bad.jsonl --json_keys=text --output=bad
[[ $(echo bad*) == 'bad.jsonl bad.txt' ]] || fail "a failed run left $(echo bad*)"
mkdir left.partial && touch left.partial/vocab.json.tmp
train 0 '' --input=stories.txt --vocab_size=300 --output=left/
[[ $(ls left) == $'merges.txt\ntokenizer.json\ntokenizer.tiktoken\nvocab.json' && ! -e left.partial ]] || fail "remains of a killed run: $(ls -d left*)"

# The program is interrupted while it reads; the pipe holds less than is written to it before.
mkfifo pipe
"$tools/train_tokenizer" --input=- --vocab_size=300 --output=x < pipe > output 2>&1 &
pid=$!
exec 3> pipe
cat stories.txt >&3
kill -TERM "$pid"
wait "$pid"
got=$?
exec 3>&-
[[ $got == 130 ]] && grep -q 'interrupted; nothing was written' output || fail "interrupted: $got: $(cat output)"

# Wrong flags and files.
train 20 '--input is missing' --output=x
train 20 '--output is missing' --input=stories.txt
train 20 'too small' --input=bad.txt --output=x --vocab_size=256  # flags first
train 20 "'words'; there are gpt2" --input=stories.txt --output=x --split_pattern=words
train 20 'vocab_sise' --vocab_sise=3
train 20 "'<a>' stands twice" --input=stories.txt --output=x --special_tokens='<a>,<b>,<a>'
: > empty.txt
train 21 'there is no text in the input' --input=empty.txt --output=x
train 21 'nothing.txt' --input=nothing.txt --output=x
train 0 'special_tokens' --help
[[ ! -e x ]] || fail "a failed run left x"
echo PASSED
