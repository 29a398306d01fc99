// What logits say of a token: its log-probability, and the likeliest tokens in its place.
#ifndef MEGATRON_GENERATE_TOKEN_SCORES_H_
#define MEGATRON_GENERATE_TOKEN_SCORES_H_

#include <cstdint>

#include "megatron/generate/text_engine.h"

namespace megatron {

// The distribution softmax(logits[0, vocab_size)), whose sum is formed in double.
class TokenScores {
 public:
  // The logits are such as CheckLogits (models/sampling.h) accepts. They must outlive this.
  TokenScores(const float* logits, int64_t vocab_size);

  float Logprob(int32_t token) const;
  // Returns the token with its log-probability and those of the `top` likeliest tokens; of tokens
  // that are as likely, the lower one comes first.
  ScoredToken Score(int32_t token, int top) const;

 private:
  const float* logits_;
  int64_t vocab_size_;
  float largest_;
  double log_sum_;  // the logarithm of the sum of exp(logit - largest)
};

}  // namespace megatron

#endif  // MEGATRON_GENERATE_TOKEN_SCORES_H_
