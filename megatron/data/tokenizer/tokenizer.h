// Converts text to token ids and back.
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

// Ids of the special tokens, by Megatron's names; -1 if the vocabulary has none.
struct SpecialTokens {
  int32_t bos = -1, eos = -1, eod = -1, pad = -1, unk = -1;
  int32_t cls = -1, sep = -1, mask = -1;
  std::vector<int32_t> sentinels;  // <extra_id_0>, <extra_id_1>, …: additional_special_tokens_ids
  // Tokens that the tokenizer's file puts before and after each text that a model reads.
  std::vector<int32_t> before, after;
};

// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin = 0, end = 0;
};

struct EncodeOptions {
  // Text that spells a special token ("<|endoftext|>") becomes that token. If false, it is plain
  // text, so that no document can forge the end of another.
  bool parse_special = false;
  // If not null, the span of the text that each id stands for is appended, in bytes.
  std::vector<TextSpan>* spans = nullptr;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Returns the value of --tokenizer_type.
  virtual absl::string_view name() const = 0;

  // Ids are in [0, vocab_size()). Models pad this number; see docs/design.md.
  virtual int32_t vocab_size() const = 0;

  virtual const SpecialTokens& special() const = 0;

  // The token that ends a document.
  int32_t eod() const { return special().eod; }

  // Appends the ids of `text` only: no BOS, no EOD, and neither `before` nor `after`.
  // kInvalidArgument if the text cannot be encoded; nothing is appended then.
  absl::Status Encode(absl::string_view text, std::vector<int32_t>* ids,
                      const EncodeOptions& options = {}) const {
    return DoEncode(text, options, ids);
  }

  // Returns the text of `ids`. Special tokens give their spelling, and an id outside the vocabulary
  // gives U+FFFD, the replacement character.
  virtual std::string Decode(absl::Span<const int32_t> ids) const = 0;

  // Returns the vocabulary's own spelling of an id ("##ing", "▁the", "Ġthe"); empty for an id
  // outside of the vocabulary.
  virtual std::string Piece(int32_t id) const = 0;

 private:
  virtual absl::Status DoEncode(absl::string_view text, const EncodeOptions& options,
                                std::vector<int32_t>* ids) const = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_TOKENIZER_H_
