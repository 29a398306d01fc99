// Creates tokenizers by the values of --tokenizer_type; docs/tokenizers.md describes each type.
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

// The options of a tokenizer, by the names of Megatron's options. A type uses only the fields that
// TokenizerFieldsOf lists.
struct TokenizerOptions {
  std::string type;
  int64_t vocab_size = 0;  // NullTokenizer: number of ids; TikTokenizer: 0 takes the whole file
  int64_t null_tokenizer_eod_id = -1;   // NullTokenizer; -1: the last id
  int64_t null_tokenizer_pad_id = -1;   // NullTokenizer; -1: none
  std::string vocab_file;               // vocab.json, or BERT's vocab.txt
  std::string merge_file;               // merges.txt
  std::string tokenizer_model;          // a file, or for HuggingFaceTokenizer also a directory
  int64_t vocab_extra_ids = 0;          // number of sentinels, <extra_id_0> and so on
  std::string tiktoken_pattern = "v2";  // "v1" or "v2"
  int64_t tiktoken_num_special_tokens = 1000;
  std::vector<std::string> tiktoken_special_tokens;  // empty: <unk>, <s>, </s>
};

// Names of the fields of TokenizerOptions that a type uses.
struct TokenizerFields {
  std::vector<absl::string_view> required, optional;
};

// Returns all types, in the order of docs/tokenizers.md.
absl::Span<const absl::string_view> TokenizerTypes();

// Returns the fields of a type. For an unknown type, kInvalidArgument lists the known ones.
absl::StatusOr<TokenizerFields> TokenizerFieldsOf(absl::string_view type);

// Creates a tokenizer. kInvalidArgument for an unknown type, an option that is missing or out of
// range, and a file with invalid contents; the file system's error for a file that cannot be read.
// Messages name the file.
absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const TokenizerOptions& options);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_TOKENIZER_FACTORY_H_
