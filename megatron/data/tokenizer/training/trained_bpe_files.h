// Writes a trained vocabulary as the files that other programs load.
#ifndef MEGATRON_DATA_TOKENIZER_TRAINING_TRAINED_BPE_FILES_H_
#define MEGATRON_DATA_TOKENIZER_TRAINING_TRAINED_BPE_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/bpe/split_pattern.h"
#include "megatron/data/tokenizer/training/bpe_trainer.h"

namespace megatron {

// A pattern that splits text into words, with its common name.
struct NamedSplitPattern {
  absl::string_view name;  // "gpt2", "llama3", "qwen2", "o200k", "tekken"
  absl::string_view regex;
  SplitPattern pattern;
};

// Returns a pattern by name. For an unknown name, kInvalidArgument lists the known ones.
absl::StatusOr<NamedSplitPattern> FindNamedSplitPattern(absl::string_view name);

// Returns GPT-2's vocab.json, ordered by id: {"<|endoftext|>":0,"!":1,…}.
std::string VocabJson(const TrainedBpe& bpe);

// Returns merges.txt: a line with the format's version, then a line for each merge with both halves
// separated by a space.
std::string MergesText(const TrainedBpe& bpe);

// Returns a tiktoken file: a line for each token except special ones, with its bytes in base64 and
// its rank, which is its id minus the number of special tokens. tiktoken merges two tokens if their
// concatenation is a token, in the order of ranks; if that differs from the trained merges, the
// result is kFailedPrecondition with the reason.
absl::StatusOr<std::string> TiktokenText(const TrainedBpe& bpe);

// Returns the whole tokenizer in the format of Hugging Face's tokenizers: special tokens, split
// pattern, vocabulary and merges. Merges are written as in merges.txt, which all releases read.
std::string TokenizerJson(const TrainedBpe& bpe, const NamedSplitPattern& split);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_TRAINING_TRAINED_BPE_FILES_H_
