// A stage with everything around it, for tests: memory, weights, one random micro-batch.
#ifndef MEGATRON_MODELS_MODEL_HARNESS_H_
#define MEGATRON_MODELS_MODEL_HARNESS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "megatron/base/thread_pool.h"
#include "megatron/comm/process_group.h"
#include "megatron/models/model_options.h"
#include "megatron/models/model_stage.h"

namespace megatron {

// Small models of the shapes that users know. Vocabulary 50, padded to 64.
ModelOptions SmallGpt2();
ModelOptions SmallLlama();
// Windows, sinks, YaRN, and of four layers one without a window and one without rotation.
ModelOptions SmallWindowed();
// Experts in every layer, of limited capacity, with balance and z losses.
ModelOptions SmallMixtral();
// A dense first layer; then sigmoid scores, biases that balance, a shared expert.
ModelOptions SmallDeepSeek();
// Latent attention with YaRN, and values narrower than keys.
ModelOptions SmallLatent();
// The same with matrices whose sizes are multiples of 16 on two ranks, as FP8 needs them.
ModelOptions SmallWideLatent();
// Latent attention without a vector for queries and without norms, in a dense layer and in one of
// experts.
ModelOptions SmallLatentMixture();
// Two layers of multi-token prediction.
ModelOptions SmallMtp();
// The same behind latent attention and experts, with an output matrix of its own.
ModelOptions SmallMtpMixture();
// Post-norm; experts chosen by sinkhorn, with jitter and padding.
ModelOptions SmallBalanced();
// Layers of one branch: Mamba-2, a gated delta net, attention, an MLP.
ModelOptions SmallHybrid();
ModelOptions SmallBert();          // Megatron's form
ModelOptions SmallPostNormBert();  // the paper's form
ModelOptions SmallMegatronT5();    // learned positions, LayerNorm, biases
ModelOptions SmallT5();            // relative positions, RMSNorm, no biases

// The tokens of one micro-batch, as host arrays.
struct HostBatch {
  std::vector<int32_t> tokens, types, labels, positions, sample_positions, cu_seqlens;
  std::vector<int64_t> samples;
  std::vector<float> loss_weights, gradient_weights;
  std::vector<int32_t> sequence_labels;
  std::vector<float> sequence_weights, sequence_gradient_weights;
  // The encoder's tokens, read by models that have one.
  std::vector<int32_t> encoder_tokens, encoder_positions, encoder_cu_seqlens;
  std::vector<int64_t> encoder_samples;
  // What multi-token prediction reads, which View() makes of the tokens for kMtpDepths depths. The
  // mean of each depth's loss has the factor kMtpFactor.
  static constexpr int kMtpDepths = 2;
  static constexpr float kMtpFactor = 0.25f;
  std::vector<int32_t> mtp_tokens, mtp_labels;
  std::vector<float> mtp_loss_weights, mtp_gradient_weights;

  MicroBatch View();
};
// Sequences of these lengths with random tokens and classes, each a sample numbered from
// `first_sample`; gradient weights are loss_weight / tokens, and sequence_weight / sequences. The
// encoder's sequences are three tokens longer.
HostBatch RandomBatch(const std::vector<int>& lengths, int64_t vocab_size, uint32_t seed,
                      int64_t first_sample = 0);

class ModelHarness {
 public:
  ModelHarness(const ModelOptions& options, const ProcessGroup& tensor_group, uint64_t seed,
               int threads = 1, const StagePlacement& placement = {});

  // Returns the sum of the mean losses over the batch, without backward; `training`: with dropout.
  double Loss(HostBatch* batch, bool training);
  // Forward and backward; gradients accumulate. Returns the sum of the mean losses.
  double LossAndGradients(HostBatch* batch);
  // Returns the logits that follow token `token` of the batch, over the padded vocabulary.
  std::vector<float> Logits(HostBatch* batch, int64_t token);
  void ZeroGradients();
  // The measures of the last call, by name.
  const std::map<std::string, double>& means() const { return means_; }

  ModelStage& stage() { return *stage_; }
  std::vector<Parameter*> parameters() { return stage_->parameters(); }
  Parameter* Find(const std::string& name);
  StageMemory& memory() { return *memory_; }
  const Stream& stream() const { return stream_; }

 private:
  void StartStep(HostBatch* batch, StageMode mode);
  double TakeLoss();

  ThreadPool pool_;
  Stream stream_;
  MemoryLedger ledger_;
  std::unique_ptr<ModelStage> stage_;
  Buffer weights_, gradients_;
  std::unique_ptr<StageMemory> memory_;
  std::vector<MicroBatch> batches_;
  std::map<std::string, double> means_;
};

// Sizes of the arenas that a stage needs for this batch, with its backward whole or split.
StageMemorySizes MeasureStage(const ModelOptions& options, int tensor_size, const MicroBatch& batch,
                              bool split = false);

}  // namespace megatron

#endif  // MEGATRON_MODELS_MODEL_HARNESS_H_
