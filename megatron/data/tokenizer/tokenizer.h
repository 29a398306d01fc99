// Text to token ids and back.
//
// Implementations are immutable: any number of threads may share one.
#ifndef MEGATRON_DATA_TOKENIZER_TOKENIZER_H_
#define MEGATRON_DATA_TOKENIZER_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace megatron {

// Ids of the tokens that have a meaning of their own, by Megatron's names; -1 where the vocabulary
// has none.
struct SpecialTokens {
  int32_t bos = -1, eos = -1, eod = -1, pad = -1, unk = -1;
  int32_t cls = -1, sep = -1, mask = -1;
  std::vector<int32_t> sentinels;  // <extra_id_0>, <extra_id_1>, …: additional_special_tokens_ids
  // What its file puts around each text that a model reads.
  std::vector<int32_t> before, behind;
};

// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin = 0, end = 0;
};

struct EncodeOptions {
  // Text that spells a special token ("<|endoftext|>") becomes that token. Otherwise it is text
  // like any other, so that no document can forge the end of another.
  bool parse_special = false;
  // If not null, gets appended for each id the bytes of the text that it stands for.
  std::vector<TextSpan>* spans = nullptr;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // As in --tokenizer_type.
  virtual absl::string_view name() const = 0;

  // Ids lie in [0, vocab_size()). Models pad this number; see docs/design.md.
  virtual int32_t vocab_size() const = 0;

  virtual const SpecialTokens& special() const = 0;

  // The token that ends a document.
  int32_t eod() const { return special().eod; }

  // Appends the ids of `text`, and nothing around them: no BOS, no EOD, not what is `before` and
  // `behind`. kInvalidArgument where the text can't be expressed; nothing is appended then.
  absl::Status Encode(absl::string_view text, std::vector<int32_t>* ids,
                      const EncodeOptions& options = {}) const {
    return DoEncode(text, options, ids);
  }

  // The text of `ids`. Special tokens read as they are spelled, and an id outside the vocabulary
  // reads U+FFFD, the replacement character.
  virtual std::string Decode(absl::Span<const int32_t> ids) const = 0;

  // The vocabulary's own spelling of an id ("##ing", "▁the", "Ġthe"); empty outside of it.
  virtual std::string Piece(int32_t id) const = 0;

 private:
  virtual absl::Status DoEncode(absl::string_view text, const EncodeOptions& options,
                                std::vector<int32_t>* ids) const = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_TOKENIZER_H_
