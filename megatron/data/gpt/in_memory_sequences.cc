#include "megatron/data/gpt/in_memory_sequences.h"

#include <algorithm>

#include "glog/logging.h"

namespace megatron {

void InMemorySequences::Append(absl::Span<const int32_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  begins_.push_back(num_tokens());
}

int32_t InMemorySequences::SequenceLength(int64_t i) const {
  return static_cast<int32_t>(begins_[i + 1] - begins_[i]);
}

absl::Status InMemorySequences::ReadTokens(int64_t i, int32_t begin,
                                           absl::Span<int32_t> out) const {
  DCHECK_LE(begin + static_cast<int64_t>(out.size()), SequenceLength(i));
  std::copy_n(tokens_.begin() + begins_[i] + begin, out.size(), out.begin());
  return absl::OkStatus();
}

}  // namespace megatron
