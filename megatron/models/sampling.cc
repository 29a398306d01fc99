#include "megatron/models/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace megatron {
namespace {

// Tokens from the likeliest on, with the sums of their weights exp(logit / temperature), up to a
// common factor. Few of them are wanted of a large vocabulary, so the others are not sorted.
class LikeliestTokens {
 public:
  LikeliestTokens(const float* logits, int64_t vocab_size, const SamplingOptions& options)
      : logits_(logits),
        temperature_(options.temperature),
        largest_(*std::max_element(logits, logits + vocab_size)),
        order_(vocab_size) {
    std::iota(order_.begin(), order_.end(), 0);
    if (options.top_k > 0 && options.top_k < vocab_size) {
      SortUpTo(options.top_k);
      order_.resize(options.top_k);
    }
    for (int32_t token : order_) total_ += Weight(token);
  }

  double total() const { return total_; }
  // Returns the first of the sums that is not below `least`, or the last one.
  double SumUpTo(double least) { return sums_[IndexOf(least)]; }
  // Returns the token with which the sum reaches `least`, or the last one.
  int32_t At(double least) { return order_[IndexOf(least)]; }

 private:
  double Weight(int32_t token) const {
    return std::exp((double{logits_[token]} - largest_) / temperature_);
  }

  // Ties go to the lower token, so that the result does not depend on the sort.
  void SortUpTo(int64_t count) {
    const auto likelier = [this](int32_t a, int32_t b) {
      return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
    };
    const auto begin = order_.begin() + static_cast<int64_t>(sums_.size());
    const auto end = order_.begin() + count;
    if (end != order_.end()) std::nth_element(begin, end, order_.end(), likelier);
    std::sort(begin, end, likelier);
    for (auto token = begin; token != end; ++token)
      sums_.push_back((sums_.empty() ? 0 : sums_.back()) + Weight(*token));
  }

  size_t IndexOf(double least) {
    while (sums_.empty() || (sums_.back() < least && sums_.size() < order_.size())) {
      SortUpTo(std::min<int64_t>(static_cast<int64_t>(order_.size()),
                                 4 * static_cast<int64_t>(sums_.size()) + 64));
    }
    const auto found = std::lower_bound(sums_.begin(), sums_.end(), least);
    return std::min<size_t>(found - sums_.begin(), sums_.size() - 1);
  }

  const float* logits_;
  double temperature_, largest_;
  std::vector<int32_t> order_;  // the first as many as there are sums are sorted
  std::vector<double> sums_;
  double total_ = 0;
};

}  // namespace

absl::Status CheckLogits(const float* logits, int64_t vocab_size) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  bool are_numbers = true, any_is_finite = false;
  for (int64_t i = 0; i < vocab_size; ++i) {
    are_numbers &= logits[i] < kInfinity;  // false for a NaN, too
    any_is_finite |= logits[i] > -kInfinity;
  }
  if (are_numbers && any_is_finite) return absl::OkStatus();
  return absl::InternalError(
      "the model gives no numbers for this text (NaN or infinity): its weights may be damaged, or "
      "too large for their type");
}

int32_t SampleToken(const float* logits, int64_t vocab_size, const SamplingOptions& options,
                    float uniform) {
  if (options.temperature == 0)
    return static_cast<int32_t>(std::max_element(logits, logits + vocab_size) - logits);
  LikeliestTokens tokens(logits, vocab_size, options);
  double sum = tokens.total();
  if (options.top_p > 0 && options.top_p < 1) sum = tokens.SumUpTo(options.top_p * sum);
  return tokens.At(uniform * sum);
}

}  // namespace megatron
