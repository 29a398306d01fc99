// Tokenizers by the names that --tokenizer_type knows; docs/tokenizers.md describes each.
#ifndef MEGATRON_DATA_TOKENIZER_TOKENIZER_FACTORY_H_
#define MEGATRON_DATA_TOKENIZER_TOKENIZER_FACTORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

// What a tokenizer is made from, by the names of Megatron's options. A type heeds those that
// TokenizerFieldsOf lists and no others.
struct TokenizerOptions {
  std::string type;
  int64_t vocab_size = 0;  // NullTokenizer: of ids; TikTokenizer: 0 takes the whole file
  int64_t null_tokenizer_eod_id = -1;   // NullTokenizer; -1: the last id
  int64_t null_tokenizer_pad_id = -1;   // NullTokenizer; -1: none
  std::string vocab_file;               // vocab.json, or BERT's vocab.txt
  std::string merge_file;               // merges.txt
  std::string tokenizer_model;          // a file, or for HuggingFaceTokenizer also a directory
  int64_t vocab_extra_ids = 0;          // sentinels, <extra_id_0> and on
  std::string tiktoken_pattern = "v2";  // "v1" or "v2"
  int64_t tiktoken_num_special_tokens = 1000;
  std::vector<std::string> tiktoken_special_tokens;  // empty: <unk>, <s>, </s>
};

// The members of TokenizerOptions that a type takes, by name.
struct TokenizerFields {
  std::vector<absl::string_view> required, optional;
};

// All types, in the order of docs/tokenizers.md.
absl::Span<const absl::string_view> TokenizerTypes();

// kInvalidArgument, listing the known ones, for an unknown type.
absl::StatusOr<TokenizerFields> TokenizerFieldsOf(absl::string_view type);

// kInvalidArgument for an unknown type, an option that is missing or out of range, and for a file
// that doesn't hold what it should; the file system's error for one that can't be read. Messages
// name the file.
absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const TokenizerOptions& options);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_TOKENIZER_FACTORY_H_
