#!/usr/bin/env bash
# Goes from nothing to an answer, as docs/walk.md does: stories, a vocabulary, a model that tells
# stories, questions about stories, a model that answers them, a server, a question.
#
#   bash tools/walk/walk.sh            # in the repository's root; everything is in ./walk
#   WALK_STEPS=20 WALK_PROGRAMS=DIR bash tools/walk/walk.sh    # shortened, with programs from DIR
#
# It prints the share of exact answers to questions about stories that the model has not seen, before
# and after the second training.
set -euo pipefail
if [[ -e walk ]]; then
  echo "$PWD/walk is there already, from an earlier walk or another program: move or remove it" >&2
  exit 1
fi
configs=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ -z ${WALK_PROGRAMS:-} ]]; then
  ./bazelw build -c opt //megatron/train:pretrain_gpt //tools:evaluate //tools:make_stories \
    //tools:preprocess_data //tools:serve //tools:train_tokenizer
  WALK_PROGRAMS=bazel-bin
fi
readonly programs=$WALK_PROGRAMS
steps=()
if [[ -n ${WALK_STEPS:-} ]]; then
  steps=(--set "train.train_iters=$WALK_STEPS" --set train.eval_iters=1
    --set optimizer.lr_warmup_iters=2)
fi

# make_stories BYTES ...: writes so many bytes of stories, or few in a walk that is shortened.
make_stories() {
  local bytes=$1
  shift
  [[ -z ${WALK_STEPS:-} ]] || bytes=50000
  "$programs/tools/make_stories" --sentences=3 --bytes="$bytes" "$@"
}
train() { "$programs/megatron/train/pretrain_gpt" --config="$configs/$1.textproto" "${steps[@]}"; }
# score CHECKPOINTS: prints the share of exact answers.
score() {
  "$programs/tools/evaluate" --checkpoint="$1" --task=lambada_openai --path=walk/unseen.jsonl |
    awk '$1 == "lambada_openai" && $3 == "acc" { print $4 }'
}

mkdir walk
# Texts: stories to learn from, questions with answers, and others to score with.
make_stories 3000000 --seed=1 --output=walk/stories.jsonl
make_stories 12000000 --seed=2 --questions=conversations --output=walk/questions.jsonl
make_stories 100000 --seed=3 --questions=texts --output=walk/asked.jsonl
make_stories 50000 --seed=4 --questions=texts --output=walk/unseen.jsonl
# A vocabulary of whole words, and the stories in its tokens.
"$programs/tools/train_tokenizer" --input=walk/stories.jsonl,walk/asked.jsonl --json_keys=text \
  --vocab_size=1024 --output=walk/tokenizer
"$programs/tools/preprocess_data" --input=walk/stories.jsonl --output_prefix=walk/stories \
  --append_eod --tokenizer_type=HuggingFaceTokenizer --tokenizer_model=walk/tokenizer
# Two trainings, and what the second one changes.
train stories
before=$(score walk/teller)
train questions
after=$(score walk/answerer)

# The first of the unseen questions, to the server.
"$programs/tools/serve" --checkpoint=walk/answerer --chat_template=plain --listen=127.0.0.1:0 \
  > walk/serve.log 2>&1 &
server=$!
trap 'kill $server 2> /dev/null; wait $server || true' EXIT
for ((try = 0; try < 600; ++try)); do
  url=$(grep -o 'http://[0-9.:]*' walk/serve.log | head -1) && break
  sleep 0.1
done
question=$(sed -n '1s/.*"User: \(.*\)\\nAssistant.*/\1/p' walk/unseen.jsonl)
curl -sS --fail --max-time 60 "$url/v1/chat/completions" -H 'Content-Type: application/json' -d \
  "{\"model\": \"answerer\", \"temperature\": 0, \"messages\": [{\"role\": \"user\", \"content\": \"$question\"}]}" \
  > walk/answer.json
echo "$question"
grep -o '"content": *"[^"]*"' walk/answer.json
echo "exact answers: $before before, $after after"
