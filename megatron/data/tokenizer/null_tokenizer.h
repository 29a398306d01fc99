// A tokenizer for text that already consists of token ids: decimal numbers separated by white
// space. It is meant for data tokenized elsewhere, and for tests.
//
// EOD is the vocabulary's last id, or the given one, as in Megatron since core 0.2x. Older releases
// added EOD to the vocabulary: their --vocab-size N is N + 1 here.
#ifndef MEGATRON_DATA_TOKENIZER_NULL_TOKENIZER_H_
#define MEGATRON_DATA_TOKENIZER_NULL_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

class NullTokenizer : public Tokenizer {
 public:
  // `vocab_size` is at least 1, and ids are below it. If `eod` is -1, EOD is the last id; if `pad`
  // is -1, there is no padding token.
  explicit NullTokenizer(int32_t vocab_size, int32_t eod = -1, int32_t pad = -1);

  absl::string_view name() const override { return "NullTokenizer"; }
  int32_t vocab_size() const override { return vocab_size_; }
  const SpecialTokens& special() const override { return special_; }
  // Returns the ids, valid or not, separated by one space.
  std::string Decode(absl::Span<const int32_t> ids) const override;
  std::string Piece(int32_t id) const override;

 private:
  // EOD's number is parsed like any other, whatever `options` say about special tokens.
  absl::Status DoEncode(absl::string_view text, const EncodeOptions& options,
                        std::vector<int32_t>* ids) const override;

  int32_t vocab_size_;
  SpecialTokens special_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_NULL_TOKENIZER_H_
