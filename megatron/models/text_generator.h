// Continues a sequence of tokens with a GPT, or with the decoder of a model that has an encoder.
//
// The next token is drawn from softmax(logits / temperature), restricted to the top_k likeliest
// tokens and to the smallest set of likeliest tokens whose probabilities sum to top_p. Equal seeds
// and prompts give equal texts. Where several ranks hold the model, all call the same methods with
// the same arguments and get the same tokens.
#ifndef MEGATRON_MODELS_TEXT_GENERATOR_H_
#define MEGATRON_MODELS_TEXT_GENERATOR_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "megatron/comm/process_group.h"
#include "megatron/layers/micro_batch.h"
#include "megatron/pipeline/stage_plan.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

class ModelStage;
class WeightBlocks;
struct StageMemory;

struct SamplingOptions {
  double temperature = 1;  // 0: always the likeliest token
  int64_t top_k = 0;       // 0: no limit
  double top_p = 0;        // 0: no limit
  uint64_t seed = 1;
};

// Returns a token drawn from logits[0, vocab_size). `uniform` is in (0, 1].
int32_t SampleToken(const float* logits, int64_t vocab_size, const SamplingOptions& options,
                    float uniform);

// This rank's part of the model, and the memory and the ranks that it works with.
struct GeneratorSetup {
  ModelStage* stage = nullptr;
  StageMemory* memory = nullptr;
  WeightBlocks* blocks = nullptr;  // the same as in StepInputs
  ProcessGroup pipeline;           // the ranks that hold the stages of the model
};

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

  // Returns the logits (of the vocabulary) at token `token` of a text of at most max_context
  // tokens, for models that see what follows it as well. They are valid until the next call, and
  // empty if a peer was lost.
  absl::Span<const float> LogitsAt(absl::Span<const int32_t> tokens, int64_t token);

  // Appends up to `count` tokens to `tokens`, which must not be empty, and shows each to
  // `on_token`; stops early when that returns false (on all ranks alike) or a peer is lost. Where
  // the text outgrows the context, the model sees its last max_context tokens.
  void Generate(const SamplingOptions& sampling, int64_t count, std::vector<int32_t>* tokens,
                absl::FunctionRef<bool(int32_t token)> on_token);

 private:
  // Computes the logits of one of the tokens, in logits_V_. False if a peer was lost.
  bool Predict(absl::Span<const int32_t> tokens, int64_t token);
  MicroBatch FirstTokens(int64_t count) const;
  EncoderBatch FirstEncoderTokens(int64_t count) const;
  absl::Status RunStages(const MicroBatch& batch, int64_t token);

  GeneratorSetup setup_;
  StagePlan plan_;
  std::vector<MicroBatch> batches_;
  GeneratorLimits limits_;
  int64_t encoder_tokens_ = 0;
  Stream stream_;
  Buffer buffer_;
  HostMirror host_;   // the host's side of buffer_
  MicroBatch whole_;  // the largest micro-batch
  Tensor logits_V_;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_TEXT_GENERATOR_H_
