// Continues a sequence of tokens with a GPT, or with the decoder of a model that has an encoder.
//
// Tokens are drawn as sampling.h says. Equal seeds and prompts give equal texts. Where several
// ranks hold the model, all call the same methods with the same arguments and get the same tokens.
//
// A GPT's earlier tokens lie in a cache (cached_model.h), so that a token costs a pass over itself.
// A token costs a pass over all that the model sees where the text outgrows the context, and where
// the stage takes no cache (ModelStage::TakesCache).
#ifndef MEGATRON_MODELS_TEXT_GENERATOR_H_
#define MEGATRON_MODELS_TEXT_GENERATOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "megatron/layers/micro_batch.h"
#include "megatron/models/cached_model.h"
#include "megatron/models/generator_setup.h"
#include "megatron/models/sampling.h"
#include "megatron/pipeline/stage_plan.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

struct GeneratorLimits {
  int64_t vocab_size = 0;           // tokens above it are never drawn
  int64_t max_context = 0;          // the most tokens that the model sees
  int64_t max_encoder_context = 0;  // the most tokens that its encoder reads, if it has one
};

class TextGenerator {
 public:
  // The stage has memory for a micro-batch as large as the limits, as Measure() finds it.
  TextGenerator(const GeneratorSetup& setup, const GeneratorLimits& limits, const Stream& stream,
                MemoryLedger* ledger);

  // Allocates from the stage's arenas what the longest context needs. On a meta stream only.
  void Measure();

  // Gives the encoder the tokens that it reads from now on, 1 to max_encoder_context of them.
  // Models that have an encoder need this first.
  void Read(absl::Span<const int32_t> tokens);

  // The bytes of the tokens, of the logits and of the cache, which are not the stage's.
  int64_t bytes() const { return buffer_.bytes() + (cached_ ? cached_->bytes() : 0); }

  // Returns the logits (of the vocabulary) at token `token` of a text of at most max_context
  // tokens, for models that see what follows it as well. They are valid until the next call, and
  // empty if a peer was lost.
  absl::Span<const float> LogitsAt(absl::Span<const int32_t> tokens, int64_t token);

  // Appends up to `count` tokens to `tokens`, which must not be empty, and shows each to
  // `on_token`; stops early when that returns false (on all ranks alike). Where the text outgrows
  // the context, the model sees its last max_context tokens. Returns CheckLogits' error where the
  // model gives no numbers, on all ranks alike, and kUnavailable if a peer was lost; the tokens
  // before that stay.
  absl::Status Generate(const SamplingOptions& sampling, int64_t count,
                        std::vector<int32_t>* tokens,
                        absl::FunctionRef<bool(int32_t token)> on_token);

 private:
  // Returns the logits that follow one of the tokens or, from the cache, the last of them; null if
  // a peer was lost.
  const float* Predict(absl::Span<const int32_t> tokens, int64_t token);
  const float* PredictFromCache(absl::Span<const int32_t> tokens);
  MicroBatch FirstTokens(int64_t count) const;
  EncoderBatch FirstEncoderTokens(int64_t count) const;
  absl::Status RunStages(const MicroBatch& batch);

  GeneratorSetup setup_;
  StagePlan plan_;
  std::vector<MicroBatch> batches_;
  GeneratorLimits limits_;
  int64_t encoder_tokens_ = 0;
  Stream stream_;
  Buffer buffer_;
  HostMirror host_;   // the host's side of buffer_
  MicroBatch whole_;  // the largest micro-batch
  Tensor predicted_1_, logits_1V_;
  std::unique_ptr<CachedModel> cached_;  // null if the stage takes no cache
  std::vector<int32_t> seen_;            // the tokens in the cache
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_TEXT_GENERATOR_H_
