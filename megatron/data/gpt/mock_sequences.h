// The synthetic documents of Megatron's --mock-data: 100,000 of 1 to 4,095 tokens (204,637,097 in
// all), which count 1, 2, 3, … modulo the vocabulary and end in EOD. Only the lengths are stored.
#ifndef MEGATRON_DATA_GPT_MOCK_SEQUENCES_H_
#define MEGATRON_DATA_GPT_MOCK_SEQUENCES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "megatron/data/token_sequences.h"

namespace megatron {

class MockSequences : public TokenSequences {
 public:
  MockSequences(int32_t vocab_size, int32_t eod);

  int64_t num_sequences() const override { return static_cast<int64_t>(lengths_.size()); }
  int32_t SequenceLength(int64_t i) const override { return lengths_[i]; }
  absl::Status ReadTokens(int64_t i, int32_t begin, absl::Span<int32_t> out) const override;

 private:
  int32_t vocab_size_;
  int32_t eod_;
  std::vector<int32_t> lengths_;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_GPT_MOCK_SEQUENCES_H_
