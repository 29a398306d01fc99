// Continues a sequence of tokens with a GPT.
//
// The next token is drawn from softmax(logits / temperature), restricted to the top_k likeliest
// tokens and to the smallest set of likeliest tokens whose probabilities sum to top_p. Equal seeds
// and prompts give equal texts.
#ifndef MEGATRON_MODELS_TEXT_GENERATOR_H_
#define MEGATRON_MODELS_TEXT_GENERATOR_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "megatron/models/gpt_stage.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

struct SamplingOptions {
  double temperature = 1;  // 0: always the likeliest token
  int64_t top_k = 0;       // 0: no limit
  double top_p = 0;        // 0: no limit
  uint64_t seed = 1;
};

// The token drawn from logits[0, vocab_size). `uniform` is in (0, 1].
int32_t SampleToken(const float* logits, int64_t vocab_size, const SamplingOptions& options,
                    float uniform);

class TextGenerator {
 public:
  // The stage is a whole model, with memory for a micro-batch of `max_context` tokens.
  TextGenerator(GptStage* stage, const GptOptions& options, int64_t max_context,
                const Stream& stream, MemoryLedger* ledger);

  // Appends up to `count` tokens to `tokens`, which must not be empty, and shows each to
  // `on_token`; stops early when that returns false. Where the text outgrows the context, the model
  // sees its last max_context tokens.
  void Generate(const SamplingOptions& sampling, int64_t count, std::vector<int32_t>* tokens,
                absl::FunctionRef<bool(int32_t token)> on_token);

 private:
  // The logits that follow the tokens, in logits_.
  void Predict(const int32_t* tokens, int64_t count);

  GptStage* stage_;
  int64_t vocab_size_, max_context_;
  Stream stream_;
  Buffer buffer_;
  MicroBatch whole_;  // of max_context tokens
  Tensor logits_V_;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_TEXT_GENERATOR_H_
