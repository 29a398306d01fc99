// What a task asks of a model: how likely tokens are behind others.
#ifndef MEGATRON_EVALUATE_SCORE_REQUEST_H_
#define MEGATRON_EVALUATE_SCORE_REQUEST_H_

#include <cstdint>
#include <vector>

namespace megatron {

// Tokens of which those from `first_scored` on are scored; at least one token stands before them.
// The model sees all but the last, which are at most as many as its context.
struct ScoreRequest {
  std::vector<int32_t> tokens;
  int64_t first_scored = 1;

  int64_t num_inputs() const { return static_cast<int64_t>(tokens.size()) - 1; }
};

struct RequestScore {
  double logprob = 0;     // the sum of the scored tokens' log-probabilities
  bool is_greedy = true;  // no token is likelier than any scored one in its place
};

}  // namespace megatron

#endif  // MEGATRON_EVALUATE_SCORE_REQUEST_H_
