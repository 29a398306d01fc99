#include "megatron/data/gpt/mock_sequences.h"

#include "glog/logging.h"
#include "megatron/data/numpy_random.h"

namespace megatron {
namespace {

constexpr int kNumDocuments = 100000;
constexpr int32_t kLengthLimit = 4096;

}  // namespace

MockSequences::MockSequences(int32_t vocab_size, int32_t eod) : vocab_size_(vocab_size), eod_(eod) {
  CHECK_GT(vocab_size, 0);
  NumpyGenerator generator(0);
  lengths_.reserve(kNumDocuments);
  for (int i = 0; i < kNumDocuments; ++i) lengths_.push_back(generator.Integer(1, kLengthLimit));
}

absl::Status MockSequences::ReadTokens(int64_t i, int32_t begin, absl::Span<int32_t> out) const {
  DCHECK_LE(begin + static_cast<int64_t>(out.size()), lengths_[i]);
  for (size_t k = 0; k < out.size(); ++k) {
    const int32_t position = begin + static_cast<int32_t>(k);
    out[k] = position == lengths_[i] - 1 ? eod_ : (position + 1) % vocab_size_;
  }
  return absl::OkStatus();
}

}  // namespace megatron
