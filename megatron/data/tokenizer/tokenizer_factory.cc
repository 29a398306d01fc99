#include "megatron/data/tokenizer/tokenizer_factory.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"
#include "megatron/data/tokenizer/null_tokenizer.h"

namespace megatron {

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const TokenizerOptions& options) {
  if (options.type == "ByteLevel") return std::make_unique<ByteLevelTokenizer>();
  if (options.type == "NullTokenizer") {
    if (options.vocab_size < 1 || options.vocab_size > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "NullTokenizer needs a vocab_size from 1 to 2^31 - 1, not ", options.vocab_size));
    }
    return std::make_unique<NullTokenizer>(static_cast<int32_t>(options.vocab_size));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown tokenizer type '", options.type,
                                                 "'; there are ByteLevel and NullTokenizer"));
}

}  // namespace megatron
