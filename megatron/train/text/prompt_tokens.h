// The tokens of a text that a GPT continues.
#ifndef MEGATRON_TRAIN_TEXT_PROMPT_TOKENS_H_
#define MEGATRON_TRAIN_TEXT_PROMPT_TOKENS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

// Returns the prompt's tokens, at least one: a prompt without any begins a document, which follows
// the end of another one. kInvalidArgument if the tokenizer cannot encode it, or has no token for
// such an end.
absl::StatusOr<std::vector<int32_t>> PromptTokens(absl::string_view prompt,
                                                  const Tokenizer& tokenizer);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TEXT_PROMPT_TOKENS_H_
