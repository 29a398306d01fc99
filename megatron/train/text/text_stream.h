// Turns generated tokens into text, piece by piece as they come.
#ifndef MEGATRON_TRAIN_TEXT_TEXT_STREAM_H_
#define MEGATRON_TRAIN_TEXT_TEXT_STREAM_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

// A token's text may depend on its neighbours (separators between ids), so all tokens are decoded
// and the new end is shown.
class TextStream {
 public:
  // `prompt` holds the tokens that the text continues, which have been shown already.
  TextStream(const Tokenizer& tokenizer, std::vector<int32_t> prompt)
      : tokenizer_(tokenizer),
        tokens_(std::move(prompt)),
        shown_(tokenizer.Decode(tokens_).size()) {}

  // Returns the text that the token adds.
  std::string Add(int32_t token) {
    tokens_.push_back(token);
    const std::string text = tokenizer_.Decode(tokens_);
    std::string piece = text.substr(shown_ < text.size() ? shown_ : text.size());
    shown_ = text.size();
    return piece;
  }

 private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> tokens_;
  size_t shown_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TEXT_TEXT_STREAM_H_
