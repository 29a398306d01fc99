// Text to token ids and back.
//
// Implementations are immutable: any number of threads may share one.
#ifndef MEGATRON_DATA_TOKENIZER_H_
#define MEGATRON_DATA_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace megatron {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // As in --tokenizer_type.
  virtual absl::string_view name() const = 0;

  // Ids lie in [0, vocab_size()). Models pad this number; see docs/design.md.
  virtual int32_t vocab_size() const = 0;

  // The token that ends a document. Encode never yields it.
  virtual int32_t eod() const = 0;

  // Appends the ids of `text`. kInvalidArgument where the text can't be expressed; nothing is
  // appended then.
  virtual absl::Status Encode(absl::string_view text, std::vector<int32_t>* ids) const = 0;

  // The text of `ids`. EOD reads <|endoftext|>, and an id outside the vocabulary U+FFFD, the
  // replacement character.
  virtual std::string Decode(absl::Span<const int32_t> ids) const = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_H_
