// Short training runs that other frameworks repeat from the same weights on the same tokens, to see
// that they get the same losses, gradient norms and weights.
//
// A GPT-2-shaped model (layer norm, learned positions, GELU by tanh, biases, tied embeddings) and a
// Llama-shaped one (RMS norm, rotary positions, SwiGLU, grouped queries, no biases, untied), each
// with AdamW and with SGD: 20 steps in fp32 on the CPU, without dropout, the global batch in two
// micro-batches.
#ifndef MEGATRON_TOOLS_INTEROP_REFERENCE_RUNS_H_
#define MEGATRON_TOOLS_INTEROP_REFERENCE_RUNS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"
#include "megatron/train/gpt_trainer.h"

namespace megatron {

struct ReferenceRun {
  std::string name;  // "gpt2_adam"
  GptTrainerOptions trainer;
  int64_t train_iters = 0;
};

std::vector<ReferenceRun> ReferenceRuns();

// The tokens of all samples, [samples, seq_length + 1]: a noisy arithmetic sequence, so that there
// is something to learn.
std::vector<int32_t> ReferenceTokens(const ReferenceRun& run);

struct ReferenceResult {
  struct Weight {
    Shape shape;
    std::vector<float> values;
  };
  std::map<std::string, Weight> initial_weights, final_weights;
  std::vector<float> losses, grad_norms;  // by step
};

// `stream` is of the CPU.
absl::StatusOr<ReferenceResult> Train(const ReferenceRun& run, const Stream& stream);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_INTEROP_REFERENCE_RUNS_H_
