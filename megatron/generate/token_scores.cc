#include "megatron/generate/token_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace megatron {

TokenScores::TokenScores(const float* logits, int64_t vocab_size)
    : logits_(logits),
      vocab_size_(vocab_size),
      largest_(*std::max_element(logits, logits + vocab_size)) {
  double sum = 0;
  for (int64_t i = 0; i < vocab_size; ++i) sum += double{std::exp(logits[i] - largest_)};
  log_sum_ = std::log(sum);
}

float TokenScores::Logprob(int32_t token) const {
  return static_cast<float>(double{logits_[token]} - double{largest_} - log_sum_);
}

ScoredToken TokenScores::Score(int32_t token, int top) const {
  ScoredToken scored;
  scored.token = token;
  scored.logprob = Logprob(token);
  scored.is_greedy = logits_[token] == largest_;
  if (top == 0) return scored;
  std::vector<int32_t> order(vocab_size_);
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::min<int64_t>(top, vocab_size_);
  std::partial_sort(order.begin(), end, order.end(), [&](int32_t a, int32_t b) {
    return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
  });
  for (auto it = order.begin(); it != end; ++it) scored.top.push_back({*it, Logprob(*it)});
  return scored;
}

}  // namespace megatron
