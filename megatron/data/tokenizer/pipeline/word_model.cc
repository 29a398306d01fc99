#include "megatron/data/tokenizer/pipeline/word_model.h"

#include <numeric>
#include <string>
#include <utility>

#include "megatron/base/status_macros.h"

namespace megatron {

WordModel::WordModel(std::vector<WordStep> steps, EncodeWord encode)
    : steps_(std::move(steps)), encode_(std::move(encode)) {}

absl::Status WordModel::Encode(absl::string_view text, bool first, std::vector<int32_t>* ids,
                               std::vector<TextSpan>* spans) const {
  // Words know their position, which is 0 at the beginning of the text. If the section does not
  // begin the text, all positions are shifted.
  const size_t shift = first ? 0 : 1;
  std::vector<Word> words(1);
  words[0].text = std::string(text);
  words[0].begin = shift;
  if (spans != nullptr) {
    words[0].origins.resize(text.size() + 1);
    std::iota(words[0].origins.begin(), words[0].origins.end(), shift);
  }
  for (const WordStep& step : steps_) step(&words);
  for (const Word& word : words) {
    const size_t old_spans = spans == nullptr ? 0 : spans->size();
    MEGATRON_RETURN_IF_ERROR(encode_(word.text, ids, spans));
    for (size_t i = old_spans; spans != nullptr && i < spans->size(); ++i) {
      TextSpan& span = (*spans)[i];
      span = {word.origins[span.begin] - shift, word.origins[span.end] - shift};
    }
  }
  return absl::OkStatus();
}

}  // namespace megatron
