// The flags that choose a tokenizer, with Megatron's names, for every program that has one.
#ifndef MEGATRON_TOOLS_COMMON_TOKENIZER_FLAGS_H_
#define MEGATRON_TOOLS_COMMON_TOKENIZER_FLAGS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

// Returns whether --tokenizer_type is given.
bool HasTokenizerFlags();

// Returns the tokenizer of --tokenizer_type (ByteLevel if it is not given) and of the flags that it
// takes. Returns kInvalidArgument with the error if these are wrong.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromFlags();

}  // namespace megatron

#endif  // MEGATRON_TOOLS_COMMON_TOKENIZER_FLAGS_H_
