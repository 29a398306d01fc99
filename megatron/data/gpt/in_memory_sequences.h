// Token sequences in memory, for small corpora and for tests.
//
//   InMemorySequences sequences;
//   sequences.Append({5, 6, 7});
#ifndef MEGATRON_DATA_GPT_IN_MEMORY_SEQUENCES_H_
#define MEGATRON_DATA_GPT_IN_MEMORY_SEQUENCES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "megatron/data/token_sequences.h"

namespace megatron {

class InMemorySequences : public TokenSequences {
 public:
  void Append(absl::Span<const int32_t> tokens);

  // Returns the number of tokens of all sequences together.
  int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }

  int64_t num_sequences() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  int32_t SequenceLength(int64_t i) const override;
  absl::Status ReadTokens(int64_t i, int32_t begin, absl::Span<int32_t> out) const override;

 private:
  std::vector<int32_t> tokens_;
  std::vector<int64_t> begins_ = {0};  // one element more than sequences
};

}  // namespace megatron

#endif  // MEGATRON_DATA_GPT_IN_MEMORY_SEQUENCES_H_
