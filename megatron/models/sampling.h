// Draws the next token of a text from softmax(logits / temperature), restricted to the top_k
// likeliest tokens and to the smallest set of likeliest tokens whose probabilities sum to top_p.
#ifndef MEGATRON_MODELS_SAMPLING_H_
#define MEGATRON_MODELS_SAMPLING_H_

#include <cstdint>

#include "absl/status/status.h"

namespace megatron {

struct SamplingOptions {
  double temperature = 1;  // 0: always the likeliest token
  int64_t top_k = 0;       // 0: no limit
  double top_p = 0;        // 0: no limit
  uint64_t seed = 1;
};

// Returns kInternal where one of logits[0, vocab_size) is NaN or infinite, unless it is minus
// infinity and another one is finite: damaged weights give such logits.
absl::Status CheckLogits(const float* logits, int64_t vocab_size);

// Returns a token drawn from logits[0, vocab_size), which CheckLogits accepts. `uniform` is in
// (0, 1].
int32_t SampleToken(const float* logits, int64_t vocab_size, const SamplingOptions& options,
                    float uniform);

}  // namespace megatron

#endif  // MEGATRON_MODELS_SAMPLING_H_
