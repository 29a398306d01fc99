// One token per byte, ids 0 to 255, and EOD, 256. Encodes any bytes at all, and Decode(Encode(x))
// == x.
#ifndef MEGATRON_DATA_BYTE_LEVEL_TOKENIZER_H_
#define MEGATRON_DATA_BYTE_LEVEL_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/data/tokenizer.h"

namespace megatron {

class ByteLevelTokenizer : public Tokenizer {
 public:
  absl::string_view name() const override { return "ByteLevel"; }
  int32_t vocab_size() const override { return 257; }
  int32_t eod() const override { return 256; }
  absl::Status Encode(absl::string_view text, std::vector<int32_t>* ids) const override;
  std::string Decode(absl::Span<const int32_t> ids) const override;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_BYTE_LEVEL_TOKENIZER_H_
