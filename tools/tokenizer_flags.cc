#include "tools/tokenizer_flags.h"

#include <cstdint>
#include <string>

#include "absl/flags/flag.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"

ABSL_FLAG(std::string, tokenizer_type, "",
          "ByteLevel, which preprocess_data takes by default, or NullTokenizer.");
ABSL_FLAG(int64_t, vocab_size, 0, "Number of token ids of NullTokenizer.");

namespace megatron {

bool HasTokenizerFlags() { return !absl::GetFlag(FLAGS_tokenizer_type).empty(); }

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromFlags() {
  TokenizerOptions options;
  options.type = absl::GetFlag(FLAGS_tokenizer_type);
  options.vocab_size = absl::GetFlag(FLAGS_vocab_size);
  if (options.type.empty()) options.type = "ByteLevel";
  return CreateTokenizer(options);
}

}  // namespace megatron
