#include "tools/interop/reference_runs.h"

#include <cmath>
#include <memory>
#include <utility>

#include "megatron/base/philox.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

constexpr int64_t kIterations = 20;
constexpr int64_t kGlobalBatch = 4;
constexpr int64_t kMicroBatch = 2;
constexpr int64_t kSeqLength = 32;
constexpr int64_t kVocab = 100;
constexpr uint64_t kSeed = 1234;

GptOptions Gpt2() {
  GptOptions gpt;
  TransformerOptions& layer = gpt.transformer;
  layer.num_layers = 3;
  layer.hidden_size = 64;
  layer.ffn_hidden_size = 256;
  layer.num_attention_heads = layer.num_query_groups = 4;
  layer.kv_channels = 16;
  layer.hidden_dropout = layer.attention_dropout = 0;
  layer.output_init_std = static_cast<float>(0.02 / std::sqrt(2.0 * 3));
  gpt.vocab_size = kVocab;
  gpt.padded_vocab_size = 128;
  gpt.max_positions = kSeqLength;
  return gpt;
}

GptOptions Llama() {
  GptOptions gpt = Gpt2();
  TransformerOptions& layer = gpt.transformer;
  layer.ffn_hidden_size = 192;
  layer.num_query_groups = 2;
  layer.norm.kind = ops::Norm::kRmsNorm;
  layer.gated = true;
  layer.linear_bias = layer.qkv_bias = false;
  layer.rotary = true;
  gpt.learned_positions = false;
  gpt.tied_embeddings = false;
  return gpt;
}

ReferenceRun MakeRun(const std::string& name, const GptOptions& model,
                     OptimizerOptions::Kind optimizer) {
  ReferenceRun run;
  run.name = name;
  run.train_iters = kIterations;
  run.trainer.model = model;
  run.trainer.clip_grad = 1;
  run.trainer.optimizer.kind = optimizer;
  run.trainer.optimizer.adam_beta2 = 0.95;
  OptimizerParamSchedule& schedule = run.trainer.schedule;
  schedule.max_lr = optimizer == OptimizerOptions::kAdamW ? 1e-3 : 3e-2;
  schedule.min_lr = schedule.max_lr / 10;
  schedule.lr_warmup_steps = 3 * kGlobalBatch;
  schedule.lr_decay_steps = kIterations * kGlobalBatch;
  schedule.lr_decay_style = LrDecayStyle::kCosine;
  schedule.start_weight_decay = schedule.end_weight_decay = 0.1;
  run.trainer.batch_size.global_batch_size = kGlobalBatch;
  run.trainer.batch_size.granularity = kMicroBatch;
  run.trainer.packing.layout.micro_batch_size = kMicroBatch;
  run.trainer.packing.seq_length = kSeqLength;
  run.trainer.packing.max_micro_batches = kGlobalBatch / kMicroBatch;
  return run;
}

class TokenSource : public GptSampleSource {
 public:
  TokenSource(std::vector<int32_t> tokens, int64_t seq_length)
      : tokens_(std::move(tokens)), seq_length_(seq_length) {}

  int64_t size() const override { return static_cast<int64_t>(tokens_.size()) / (seq_length_ + 1); }

  absl::Status Get(int64_t index, GptSample* sample) const override {
    const auto begin = tokens_.begin() + index * (seq_length_ + 1);
    sample->tokens.assign(begin, begin + seq_length_);
    sample->labels.assign(begin + 1, begin + 1 + seq_length_);
    sample->loss_mask.assign(seq_length_, 1);
    sample->positions.resize(seq_length_);
    for (int64_t i = 0; i < seq_length_; ++i) sample->positions[i] = static_cast<int32_t>(i);
    sample->document_starts = {0};
    return absl::OkStatus();
  }

 private:
  std::vector<int32_t> tokens_;
  int64_t seq_length_;
};

// Sized by a run on the meta device, as every run of ours is.
absl::StatusOr<std::unique_ptr<GptTrainer>> MakeTrainer(const ReferenceRun& run,
                                                        const Stream& stream,
                                                        MemoryLedger* ledger) {
  const LossScaler scaler = LossScaler::MakeConstant(1);
  MemoryLedger planned;
  MEGATRON_ASSIGN_OR_RETURN(
      std::unique_ptr<GptTrainer> plan,
      GptTrainer::Create(run.trainer, scaler, {}, {}, Stream::Meta(), &planned));
  return GptTrainer::Create(run.trainer, scaler, {}, plan->Measure(), stream, ledger);
}

std::map<std::string, ReferenceResult::Weight> Weights(GptTrainer& trainer) {
  std::map<std::string, ReferenceResult::Weight> weights;
  for (const ParameterState& state : trainer.buffers().States()) {
    const float* values = state.master.data<float>();
    weights[state.parameter->name] = {state.parameter->sharding.local_shape,
                                      std::vector<float>(values, values + state.master.numel())};
  }
  return weights;
}

}  // namespace

std::vector<ReferenceRun> ReferenceRuns() {
  return {MakeRun("gpt2_adam", Gpt2(), OptimizerOptions::kAdamW),
          MakeRun("gpt2_sgd", Gpt2(), OptimizerOptions::kSgd),
          MakeRun("llama_adam", Llama(), OptimizerOptions::kAdamW),
          MakeRun("llama_sgd", Llama(), OptimizerOptions::kSgd)};
}

std::vector<int32_t> ReferenceTokens(const ReferenceRun& run) {
  const int64_t length = run.trainer.packing.seq_length + 1;
  const int64_t samples = run.train_iters * run.trainer.batch_size.global_batch_size;
  const PhiloxKey key = DeriveKey(kSeed, kPhiloxSampling, 0, 0);
  std::vector<int32_t> tokens;
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (int64_t i = 0; i < length; ++i) {
      const PhiloxBlock random =
          Philox(key, {{static_cast<uint32_t>(sample), static_cast<uint32_t>(i), 0, 0}});
      const int64_t next =
          i == 0 ? random.word[0] % kVocab : tokens.back() * 3 + random.word[0] % 4;
      tokens.push_back(static_cast<int32_t>(next % kVocab));
    }
  }
  return tokens;
}

absl::StatusOr<ReferenceResult> Train(const ReferenceRun& run, const Stream& stream) {
  MemoryLedger ledger;
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<GptTrainer> trainer, MakeTrainer(run, stream, &ledger));
  trainer->InitializeWeights(kSeed);
  const TokenSource source(ReferenceTokens(run), run.trainer.packing.seq_length);
  ReferenceResult result;
  result.initial_weights = Weights(*trainer);
  for (int64_t i = 0; i < run.train_iters; ++i) {
    MEGATRON_ASSIGN_OR_RETURN(const StepReport report,
                              trainer->Step(source, /*stop_requested=*/false, nullptr));
    if (!report.update.applied) return absl::InternalError(run.name + " diverged");
    result.losses.push_back(static_cast<float>(report.loss));
    result.grad_norms.push_back(static_cast<float>(report.update.grad_norm));
  }
  result.final_weights = Weights(*trainer);
  return result;
}

}  // namespace megatron
