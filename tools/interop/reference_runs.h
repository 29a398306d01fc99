// Short training runs that other frameworks repeat from the same weights on the same tokens, to
// check that they get the same losses, gradient norms and weights.
//
// Small models of the shapes of GPT-2 (layer norm, learned positions, GELU by tanh, biases, tied
// embeddings), Llama (RMS norm, rotary positions, SwiGLU, grouped queries, no biases, untied), the
// same with windows, sinks and rotations that differ from layer to layer, BERT as in the paper and
// as Megatron's, T5 1.0, 1.1 and as Megatron's, Falcon with one norm for both branches of a layer
// and with a norm for each; the first on conversations whose answers it learns, the first two with
// low-rank adapters, and BERTs that classify sequences or choose among them. Each with AdamW and
// with SGD: 20 steps in fp32 on the CPU, without dropout, the global batch in two micro-batches.
#ifndef MEGATRON_TOOLS_INTEROP_REFERENCE_RUNS_H_
#define MEGATRON_TOOLS_INTEROP_REFERENCE_RUNS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/data/sample.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {

struct ReferenceRun {
  std::string name;  // "gpt2_adam"
  TrainerOptions trainer;
  int64_t train_iters = 0;
};

std::vector<ReferenceRun> ReferenceRuns();

// Returns whether the model is compared with Hugging Face's (BERT, T5 as published, Falcon); its
// weights then have the names and the layout that they have there.
bool IsHuggingFaces(const ReferenceRun& run);

// The samples, in the order of training.
std::vector<Sample> ReferenceSamples(const ReferenceRun& run);

struct ReferenceResult {
  struct Weight {
    Shape shape;
    std::vector<float> values;
  };
  std::map<std::string, Weight> initial_weights, final_weights;
  std::vector<float> losses, grad_norms;  // one entry for each step
};

// `stream` must be a CPU stream.
absl::StatusOr<ReferenceResult> Train(const ReferenceRun& run, const Stream& stream);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_INTEROP_REFERENCE_RUNS_H_
