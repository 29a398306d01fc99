// Text that is token ids already: decimal numbers with white space between. For data tokenized
// elsewhere, and for tests.
//
// As in Megatron since core 0.2x, EOD is the vocabulary's last id, or the one that is asked for.
// Older releases counted EOD on top: their --vocab-size N is N + 1 here.
#ifndef MEGATRON_DATA_TOKENIZER_NULL_TOKENIZER_H_
#define MEGATRON_DATA_TOKENIZER_NULL_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

class NullTokenizer : public Tokenizer {
 public:
  // `vocab_size` is at least 1, and ids are below it; an `eod` of -1 is the last id, a `pad` of -1
  // none.
  explicit NullTokenizer(int32_t vocab_size, int32_t eod = -1, int32_t pad = -1);

  absl::string_view name() const override { return "NullTokenizer"; }
  int32_t vocab_size() const override { return vocab_size_; }
  const SpecialTokens& special() const override { return special_; }
  // The ids, whatever they are, with one space between.
  std::string Decode(absl::Span<const int32_t> ids) const override;
  std::string Piece(int32_t id) const override;

 private:
  // EOD's own number is a number like any other, whatever `options` say of special tokens.
  absl::Status DoEncode(absl::string_view text, const EncodeOptions& options,
                        std::vector<int32_t>* ids) const override;

  int32_t vocab_size_;
  SpecialTokens special_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_NULL_TOKENIZER_H_
