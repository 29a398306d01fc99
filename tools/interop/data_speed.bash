#!/usr/bin/env bash
# Times our data tools and the packages that do the same in turn, in one run, and prints the ratios; from a clean clone,
# with what it needs from the Python package index, each part in some three minutes on a quiet machine.
#
#   bash tools/interop/data_speed.bash tokenizer|preprocess|train [DATA]
#
# DATA, by default $MEGATRON_TEST_DATA, is a folder with gpt2-vocab.json, gpt2-merges.txt, shakespeare.txt and
# wagahai.ja.txt (the two books as plain text).
set -euo pipefail
part=${1:-}
data=$(cd "${2:-${MEGATRON_TEST_DATA:?a folder with vocabulary and books is needed}}" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/interop/python.bash
bin() { ./bazelw info bazel-bin 2>/dev/null; }
books=("$data/shakespeare.txt" "$data/wagahai.ja.txt")

case $part in
  tokenizer)
    use_tokenizer_packages
    ./bazelw build //tools/interop/tokenizers:encode_texts
    "$venv_python" tools/interop/tokenizer_speed.py "$(bin)/tools/interop/tokenizers/encode_texts" "$data"
    ;;
  preprocess)
    use_tokenizer_packages
    ./bazelw build //tools:preprocess_data
    "$venv_python" tools/interop/preprocess_speed.py "$(bin)/tools/preprocess_data" "$data/gpt2-vocab.json" \
      "$data/gpt2-merges.txt" "${books[@]}"
    ;;
  train)
    use_tokenizer_packages
    ./bazelw build //tools:train_tokenizer //tools:make_stories
    "$(bin)/tools/make_stories" --bytes=10000000 | sed 's/{"text": "//; s/"}$//' > "$scratch/stories.txt"
    "$venv_python" tools/interop/train_tokenizer/speed.py "$(bin)" 16000 "${books[@]}" "$scratch/stories.txt"
    ;;
  *)
    echo "usage: data_speed.bash tokenizer|preprocess|train [DATA]" >&2
    exit 2
    ;;
esac
