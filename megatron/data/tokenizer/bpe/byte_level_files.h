// Creates byte-level BPE tokenizers from the files of GPT-2 and of tiktoken, as Megatron reads
// them.
#ifndef MEGATRON_DATA_TOKENIZER_BPE_BYTE_LEVEL_FILES_H_
#define MEGATRON_DATA_TOKENIZER_BPE_BYTE_LEVEL_FILES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/bpe/split_pattern.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

// Creates a tokenizer from GPT-2's vocab.json and merges.txt. "<|endoftext|>" must be in the
// vocabulary; it is eod, eos and bos.
absl::StatusOr<std::unique_ptr<Tokenizer>> CreateGpt2BpeTokenizer(absl::string_view vocab_json,
                                                                  absl::string_view merges_txt);

struct TiktokenOptions {
  SplitPattern pattern = SplitPattern::kTekken;
  int64_t vocab_size = 0;  // 0: special tokens and all of the file's tokens
  int64_t num_special_tokens = 1000;
  // The first special tokens; the others are called <SPECIAL_i>. "<unk>", "<s>" and "</s>" must be
  // among them; "</s>" is eod. "<pad>", "<mask>", "<cls>" and "<sep>" are recognized by name, too.
  std::vector<std::string> special_tokens = {"<unk>", "<s>", "</s>"};
};

// Creates a tokenizer whose special tokens come first, followed by the file's tokens by rank. The
// file is tiktoken's (a token in base64 and its rank on each line) or Megatron's JSON list.
absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTiktokenTokenizer(absl::string_view file,
                                                                   const TiktokenOptions& options);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BPE_BYTE_LEVEL_FILES_H_
