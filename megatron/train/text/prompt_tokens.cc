#include "megatron/train/text/prompt_tokens.h"

#include "absl/status/status.h"
#include "megatron/base/status_macros.h"

namespace megatron {

absl::StatusOr<std::vector<int32_t>> PromptTokens(absl::string_view prompt,
                                                  const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
  MEGATRON_RETURN_IF_ERROR(tokenizer.Encode(prompt, &tokens));
  if (!tokens.empty()) return tokens;
  if (tokenizer.eod() < 0) {
    return absl::InvalidArgumentError(
        "the prompt has no tokens, and the tokenizer has none that ends a document, which a text "
        "could follow: give the beginning of the text");
  }
  tokens.push_back(tokenizer.eod());
  return tokens;
}

}  // namespace megatron
