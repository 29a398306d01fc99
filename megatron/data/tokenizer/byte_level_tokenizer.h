// A tokenizer with one token per byte, ids 0 to 255, and EOD, 256. It encodes any bytes, and
// Decode(Encode(x)) == x.
#ifndef MEGATRON_DATA_TOKENIZER_BYTE_LEVEL_TOKENIZER_H_
#define MEGATRON_DATA_TOKENIZER_BYTE_LEVEL_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/data/tokenizer/tokenizer.h"

namespace megatron {

class ByteLevelTokenizer : public Tokenizer {
 public:
  ByteLevelTokenizer() { special_.eod = special_.eos = 256; }

  absl::string_view name() const override { return "ByteLevel"; }
  int32_t vocab_size() const override { return 257; }
  const SpecialTokens& special() const override { return special_; }
  std::string Decode(absl::Span<const int32_t> ids) const override;
  std::string Piece(int32_t id) const override;

 private:
  absl::Status DoEncode(absl::string_view text, const EncodeOptions& options,
                        std::vector<int32_t>* ids) const override;

  SpecialTokens special_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_BYTE_LEVEL_TOKENIZER_H_
