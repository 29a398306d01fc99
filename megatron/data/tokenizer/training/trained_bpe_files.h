// A trained vocabulary as the files that other programs load.
#ifndef MEGATRON_DATA_TOKENIZER_TRAINING_TRAINED_BPE_FILES_H_
#define MEGATRON_DATA_TOKENIZER_TRAINING_TRAINED_BPE_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/bpe/split_pattern.h"
#include "megatron/data/tokenizer/training/bpe_trainer.h"

namespace megatron {

// A way to cut text into words, by a name that people know.
struct NamedSplitPattern {
  absl::string_view name;  // "gpt2", "llama3", "qwen2", "o200k", "tekken"
  absl::string_view regex;
  SplitPattern pattern;
};

// kInvalidArgument, listing the known ones, for other names.
absl::StatusOr<NamedSplitPattern> FindNamedSplitPattern(absl::string_view name);

// {"<|endoftext|>":0,"!":1,…}, by id: GPT-2's vocab.json.
std::string VocabJson(const TrainedBpe& bpe);

// A line for each merge, both sides with a space between, below a line with the format's version:
// merges.txt.
std::string MergesText(const TrainedBpe& bpe);

// A line for each token but special ones: its bytes in base64, and its rank, which is its id less
// the number of special tokens. tiktoken merges two tokens where they are a token together, in the
// order of ranks; kFailedPrecondition with the reason where that is not what the merges say.
absl::StatusOr<std::string> TiktokenText(const TrainedBpe& bpe);

// All of a tokenizer in the format of Hugging Face's tokenizers: special tokens, split pattern,
// vocabulary and merges. Merges are written as in merges.txt, which all its releases read.
std::string TokenizerJson(const TrainedBpe& bpe, const NamedSplitPattern& split);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_TRAINING_TRAINED_BPE_FILES_H_
