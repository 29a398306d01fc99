// The reasons for which a line of input is unusable, as preprocess_data counts them.
#ifndef MEGATRON_DATA_TEXT_BAD_LINE_KIND_H_
#define MEGATRON_DATA_TEXT_BAD_LINE_KIND_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace megatron {

enum class BadLineKind {
  kBrokenJson,
  kMissingKey,
  kWrongType,
  kBadUtf8,
  kLoneSurrogate,
  kTooLong,
  kRefusedByTokenizer,
};

inline constexpr size_t kNumBadLineKinds = 7;

// Returns "broken JSON" and so on.
inline absl::string_view BadLineKindName(BadLineKind kind) {
  constexpr absl::string_view kNames[kNumBadLineKinds] = {
      "broken JSON",    "key missing", "wrong type",          "bad UTF-8",
      "lone surrogate", "too long",    "refused by tokenizer"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace megatron

#endif  // MEGATRON_DATA_TEXT_BAD_LINE_KIND_H_
