// What makes tokens of text that has been normalized and holds no added token.
#ifndef MEGATRON_DATA_TOKENIZER_PIPELINE_TEXT_MODEL_H_
#define MEGATRON_DATA_TOKENIZER_PIPELINE_TEXT_MODEL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

// Immutable, for any number of threads.
class TextModel {
 public:
  virtual ~TextModel() = default;

  // Appends the ids of `text`, and to `spans`, if not null, the bytes of `text` that each stands
  // for. `first`: nothing stands before the text. After an error either may hold more.
  virtual absl::Status Encode(absl::string_view text, bool first, std::vector<int32_t>* ids,
                              std::vector<TextSpan>* spans) const = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_PIPELINE_TEXT_MODEL_H_
