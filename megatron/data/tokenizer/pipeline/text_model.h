// The interface of models that turn normalized text without added tokens into tokens.
#ifndef MEGATRON_DATA_TOKENIZER_PIPELINE_TEXT_MODEL_H_
#define MEGATRON_DATA_TOKENIZER_PIPELINE_TEXT_MODEL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

// Models are immutable: any number of threads may use one.
class TextModel {
 public:
  virtual ~TextModel() = default;

  // Appends the ids of `text`, and to `spans`, if it is not null, the bytes of `text` that each id
  // stands for. `first` means that the text begins the whole text. After an error, both may hold
  // additional elements.
  virtual absl::Status Encode(absl::string_view text, bool first, std::vector<int32_t>* ids,
                              std::vector<TextSpan>* spans) const = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_PIPELINE_TEXT_MODEL_H_
