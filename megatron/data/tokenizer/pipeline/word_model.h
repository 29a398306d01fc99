// Models that encode words one by one, after steps that split a section into words.
#ifndef MEGATRON_DATA_TOKENIZER_PIPELINE_WORD_MODEL_H_
#define MEGATRON_DATA_TOKENIZER_PIPELINE_WORD_MODEL_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "megatron/data/tokenizer/pipeline/text_model.h"
#include "megatron/data/tokenizer/pipeline/word_splitter.h"

namespace megatron {

// Appends the ids of a word, and to `spans`, if it is not null, their positions in the word.
using EncodeWord = std::function<absl::Status(absl::string_view word, std::vector<int32_t>* ids,
                                              std::vector<TextSpan>* spans)>;

class WordModel : public TextModel {
 public:
  WordModel(std::vector<WordStep> steps, EncodeWord encode);

  absl::Status Encode(absl::string_view text, bool first, std::vector<int32_t>* ids,
                      std::vector<TextSpan>* spans) const override;

 private:
  std::vector<WordStep> steps_;
  EncodeWord encode_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_PIPELINE_WORD_MODEL_H_
