// Tokenizers by the names that --tokenizer_type knows.
#ifndef MEGATRON_DATA_TOKENIZER_TOKENIZER_FACTORY_H_
#define MEGATRON_DATA_TOKENIZER_TOKENIZER_FACTORY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

struct TokenizerOptions {
  std::string type;        // "ByteLevel" or "NullTokenizer"
  int64_t vocab_size = 0;  // required by NullTokenizer, unused by others
};

// kInvalidArgument for an unknown type (the message lists them) or an option that is missing or out
// of range.
absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const TokenizerOptions& options);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_TOKENIZER_FACTORY_H_
