#include "megatron/models/model_harness.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "megatron/models/make_stage.h"
#include "megatron/ops/elementwise.h"

namespace megatron {
namespace {

constexpr int64_t kMaxTokens = 64;

TransformerOptions SmallTransformer() {
  TransformerOptions options;
  options.num_layers = 2;
  options.hidden_size = 32;
  options.ffn_hidden_size = 48;
  options.num_attention_heads = 4;
  options.num_query_groups = 4;
  options.kv_channels = 8;
  options.hidden_dropout = options.attention_dropout = 0;
  // The weights are so large that every path carries weight in the gradients.
  options.init_std = options.output_init_std = 0.3f;
  return options;
}

int64_t LongestSequence(const std::vector<int32_t>& cu_seqlens) {
  int64_t longest = 0;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s)
    longest = std::max<int64_t>(longest, cu_seqlens[s + 1] - cu_seqlens[s]);
  return longest;
}

MicroBatch MetaBatch(const MicroBatch& batch) {
  MicroBatch meta = batch;
  for (Tensor* tensor : {&meta.tokens_T,
                         &meta.labels_T,
                         &meta.loss_weight_T,
                         &meta.gradient_weight_T,
                         &meta.position_T,
                         &meta.sample_T,
                         &meta.sample_position_T,
                         &meta.cu_seqlens,
                         &meta.token_type_T,
                         &meta.sequence_label_S,
                         &meta.sequence_weight_S,
                         &meta.sequence_gradient_weight_S,
                         &meta.encoder.tokens_T,
                         &meta.encoder.position_T,
                         &meta.encoder.sample_T,
                         &meta.encoder.sample_position_T,
                         &meta.encoder.cu_seqlens,
                         &meta.mtp.tokens_DT,
                         &meta.mtp.labels_DT,
                         &meta.mtp.loss_weight_DT,
                         &meta.mtp.gradient_weight_DT}) {
    *tensor = Tensor(nullptr, tensor->dtype(), tensor->shape(), {DeviceType::kMeta});
  }
  return meta;
}

}  // namespace

ModelOptions SmallGpt2() {
  ModelOptions options;
  options.transformer = SmallTransformer();
  options.vocab_size = 50;
  options.padded_vocab_size = 64;
  options.max_positions = kMaxTokens;
  options.embedding_init_std = 0.3f;
  return options;
}

ModelOptions SmallWindowed() {
  ModelOptions options = SmallLlama();
  TransformerOptions& transformer = options.transformer;
  transformer.window_size = 5;
  transformer.window_layers = {true, true, false, true};
  transformer.sink = AttentionSink::kLearned;
  transformer.rotary_layers = {true, false, true, true};
  transformer.rotary_options.local_base = 100;
  transformer.rotary_options.yarn.factor = 4;
  transformer.rotary_options.yarn.original_context = 8;
  transformer.rotary_options.yarn.beta_fast = 1;
  transformer.rotary_options.yarn.beta_slow = 0.25;
  return options;
}

ModelOptions SmallLlama() {
  ModelOptions options = SmallGpt2();
  TransformerOptions& transformer = options.transformer;
  transformer.num_query_groups = 2;
  transformer.norm.kind = ops::Norm::kRmsNorm;
  transformer.gated = true;
  transformer.linear_bias = transformer.qkv_bias = false;
  transformer.rotary = true;
  options.learned_positions = false;
  options.tied_embeddings = false;
  return options;
}

ModelOptions SmallMixtral() {
  ModelOptions options = SmallLlama();
  MoeOptions& moe = options.transformer.moe;
  moe.num_experts = 4;
  moe.ffn_hidden_size = 24;
  moe.aux_loss_coeff = 0.05f;
  moe.z_loss_coeff = 1e-3f;
  moe.capacity_factor = 1;
  return options;
}

ModelOptions SmallBalanced() {
  ModelOptions options = SmallLlama();
  options.transformer.post_norm = true;
  options.transformer.linear_bias = options.transformer.qkv_bias = true;
  options.transformer.gate = ops::Activation::kQuickGelu;
  options.transformer.gate_limit = 0.6f;
  options.transformer.gate_offset = 1;
  MoeOptions& moe = options.transformer.moe;
  moe.num_experts = 4;
  moe.ffn_hidden_size = 24;
  moe.router.pre_softmax = moe.router.choose_by_logit = true;
  moe.sinkhorn = true;
  moe.input_jitter_eps = 0.1f;
  moe.z_loss_coeff = 1e-3f;
  moe.capacity_factor = 1;
  moe.pad_to_capacity = true;
  return options;
}

ModelOptions SmallDeepSeek() {
  ModelOptions options = SmallLlama();
  MoeOptions& moe = options.transformer.moe;
  moe.num_experts = 8;
  moe.layers.assign(8, true);
  moe.layers[0] = false;
  moe.ffn_hidden_size = 16;
  moe.shared_ffn_hidden_size = 24;
  moe.shared_expert_gate = true;
  moe.router.score = ops::RouterScore::kSigmoid;
  moe.router.topk = 3;
  moe.router.scaling_factor = 1.5f;
  moe.expert_bias = true;
  moe.aux_loss_coeff = 0.01f;
  return options;
}

ModelOptions SmallLatent() {
  ModelOptions options = SmallLlama();
  TransformerOptions& transformer = options.transformer;
  transformer.num_query_groups = transformer.num_attention_heads;
  transformer.kv_channels = 10;
  transformer.value_channels = 6;
  transformer.latent = {/*kv_rank=*/12, /*q_rank=*/14, /*rotated_size=*/4};
  transformer.qk_norm = true;
  transformer.rotary_options.interleaved = true;
  YarnOptions& yarn = transformer.rotary_options.yarn;
  yarn.factor = 4;
  yarn.original_context = 8;
  yarn.beta_fast = 1;
  yarn.beta_slow = 0.25;
  yarn.mscale_all_dim = 1;
  transformer.softmax_scale = 0.4f;
  return options;
}

ModelOptions SmallWideLatent() {
  ModelOptions options = SmallLatent();
  TransformerOptions& transformer = options.transformer;
  transformer.kv_channels = 32;
  transformer.value_channels = 16;
  transformer.latent = {/*kv_rank=*/16, /*q_rank=*/32, /*rotated_size=*/16};
  return options;
}

ModelOptions SmallLatentMixture() {
  ModelOptions options = SmallDeepSeek();
  const ModelOptions latent = SmallLatent();
  TransformerOptions& transformer = options.transformer;
  transformer.num_query_groups = latent.transformer.num_query_groups;
  transformer.kv_channels = latent.transformer.kv_channels;
  transformer.value_channels = latent.transformer.value_channels;
  transformer.latent = latent.transformer.latent;
  transformer.latent.q_rank = 0;
  return options;
}

ModelOptions SmallMtp() {
  ModelOptions options = SmallLlama();
  options.tied_embeddings = true;
  options.mtp_num_layers = HostBatch::kMtpDepths;
  options.mtp_loss_scaling_factor = HostBatch::kMtpFactor * HostBatch::kMtpDepths;
  return options;
}

ModelOptions SmallMtpMixture() {
  ModelOptions options = SmallLatentMixture();
  options.mtp_num_layers = HostBatch::kMtpDepths;
  options.mtp_loss_scaling_factor = HostBatch::kMtpFactor * HostBatch::kMtpDepths;
  return options;
}

ModelOptions SmallHybrid() {
  ModelOptions options = SmallLlama();
  TransformerOptions& transformer = options.transformer;
  transformer.rotary = false;
  transformer.norm.epsilon = 0.1f;  // norms of heads' small outputs are smooth
  transformer.hybrid_layers = {HybridLayer::kMamba, HybridLayer::kDelta, HybridLayer::kAttention,
                               HybridLayer::kMlp};
  transformer.num_layers = 4;
  transformer.mamba = {/*state_dim=*/6, /*head_dim=*/8, /*num_groups=*/4, /*num_heads=*/8};
  transformer.delta = {/*conv_taps=*/4, /*key_head_dim=*/6, /*value_head_dim=*/4,
                       /*num_key_heads=*/4, /*num_value_heads=*/8};
  return options;
}

ModelOptions SmallBert() {
  ModelOptions options = SmallGpt2();
  options.transformer.name = "encoder";
  options.transformer.causal = false;
  options.num_token_types = 2;
  options.kind = ModelKind::kBert;
  options.sentence_order_head = true;
  return options;
}

ModelOptions SmallPostNormBert() {
  ModelOptions options = SmallBert();
  options.transformer.post_norm = true;
  options.transformer.activation = ops::Activation::kGeluErf;
  return options;
}

ModelOptions SmallMegatronT5() {
  ModelOptions options = SmallGpt2();
  options.kind = ModelKind::kT5;
  options.num_encoder_layers = 2;
  options.transformer.num_layers = 3;
  options.output_bias = true;
  return options;
}

ModelOptions SmallT5() {
  ModelOptions options = SmallMegatronT5();
  TransformerOptions& transformer = options.transformer;
  transformer.kv_channels = 12;
  transformer.norm.kind = ops::Norm::kRmsNorm;
  transformer.norm.epsilon = 1e-6f;
  transformer.linear_bias = transformer.qkv_bias = false;
  transformer.activation = ops::Activation::kRelu;
  transformer.relative_positions = {8, 12};
  transformer.softmax_scale = 1;
  transformer.init_std = transformer.output_init_std = 0.15f;  // scores are not scaled
  options.learned_positions = false;
  options.output_bias = false;
  options.output_scale = 1 / std::sqrt(static_cast<float>(transformer.hidden_size));
  return options;
}

// Numbers of their own, so that the others do not depend on it.
void AddEncoder(const std::vector<int>& lengths, int64_t vocab_size, uint32_t seed,
                int64_t first_sample, HostBatch* batch) {
  std::mt19937 random(seed + 1000);
  batch->encoder_cu_seqlens = {0};
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int i = 0; i < lengths[s] + 3; ++i) {
      batch->encoder_tokens.push_back(static_cast<int32_t>(random() % vocab_size));
      batch->encoder_positions.push_back(i);
      batch->encoder_samples.push_back(first_sample + static_cast<int64_t>(s));
    }
    batch->encoder_cu_seqlens.push_back(static_cast<int32_t>(batch->encoder_tokens.size()));
  }
}

HostBatch RandomBatch(const std::vector<int>& lengths, int64_t vocab_size, uint32_t seed,
                      int64_t first_sample) {
  std::mt19937 random(seed);
  HostBatch batch;
  batch.cu_seqlens = {0};
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int i = 0; i < lengths[s]; ++i) {
      batch.tokens.push_back(static_cast<int32_t>(random() % vocab_size));
      batch.types.push_back(i < lengths[s] / 2 ? 0 : 1);
      batch.labels.push_back(static_cast<int32_t>(random() % vocab_size));
      batch.positions.push_back(i);
      batch.samples.push_back(first_sample + static_cast<int64_t>(s));
      batch.loss_weights.push_back(random() % 5 == 0 ? 0.0f : 1.0f);
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.tokens.size()));
    batch.sequence_labels.push_back(static_cast<int32_t>(s % 2));
    batch.sequence_weights.push_back(1);
    batch.sequence_gradient_weights.push_back(1.0f / static_cast<float>(lengths.size()));
  }
  batch.sample_positions = batch.positions;
  AddEncoder(lengths, vocab_size, seed, first_sample, &batch);
  float count = 0;
  for (float weight : batch.loss_weights) count += weight;
  for (float weight : batch.loss_weights) batch.gradient_weights.push_back(weight / count);
  return batch;
}

namespace {

// Fills what multi-token prediction reads.
void FillMtp(HostBatch* batch) {
  const size_t tokens = batch->tokens.size();
  batch->mtp_tokens.assign(HostBatch::kMtpDepths * tokens, 0);
  batch->mtp_labels.assign(HostBatch::kMtpDepths * tokens, -1);
  batch->mtp_loss_weights.assign(HostBatch::kMtpDepths * tokens, 0);
  batch->mtp_gradient_weights.assign(HostBatch::kMtpDepths * tokens, 0);
  for (int d = 0; d < HostBatch::kMtpDepths; ++d) {
    float count = 0;
    for (size_t s = 0; s + 1 < batch->cu_seqlens.size(); ++s) {
      for (int t = batch->cu_seqlens[s]; t + d + 1 < batch->cu_seqlens[s + 1]; ++t) {
        const size_t to = d * tokens + t, from = t + d + 1;
        batch->mtp_tokens[to] = batch->tokens[from];
        batch->mtp_labels[to] = batch->labels[from];
        batch->mtp_loss_weights[to] = batch->loss_weights[from];
        count += batch->loss_weights[from];
      }
    }
    for (size_t t = d * tokens; t < (d + 1) * tokens; ++t) {
      batch->mtp_gradient_weights[t] =
          HostBatch::kMtpFactor * batch->mtp_loss_weights[t] / std::max(count, 1.0f);
    }
  }
}

}  // namespace

MicroBatch HostBatch::View() {
  FillMtp(this);
  const Shape shape{static_cast<int64_t>(tokens.size())};
  MicroBatch batch;
  batch.tokens_T = Tensor(tokens.data(), DType::kInt32, shape);
  batch.labels_T = Tensor(labels.data(), DType::kInt32, shape);
  batch.loss_weight_T = Tensor(loss_weights.data(), DType::kFloat32, shape);
  batch.gradient_weight_T = Tensor(gradient_weights.data(), DType::kFloat32, shape);
  batch.position_T = Tensor(positions.data(), DType::kInt32, shape);
  batch.token_type_T = Tensor(types.data(), DType::kInt32, shape);
  const Shape sequences{static_cast<int64_t>(sequence_labels.size())};
  batch.sequence_label_S = Tensor(sequence_labels.data(), DType::kInt32, sequences);
  batch.sequence_weight_S = Tensor(sequence_weights.data(), DType::kFloat32, sequences);
  batch.sequence_gradient_weight_S =
      Tensor(sequence_gradient_weights.data(), DType::kFloat32, sequences);
  batch.sample_T = Tensor(samples.data(), DType::kInt64, shape);
  batch.sample_position_T = Tensor(sample_positions.data(), DType::kInt32, shape);
  batch.cu_seqlens =
      Tensor(cu_seqlens.data(), DType::kInt32, {static_cast<int64_t>(cu_seqlens.size())});
  batch.max_seqlen = LongestSequence(cu_seqlens);
  const Shape encoder{static_cast<int64_t>(encoder_tokens.size())};
  batch.encoder.tokens_T = Tensor(encoder_tokens.data(), DType::kInt32, encoder);
  batch.encoder.position_T = Tensor(encoder_positions.data(), DType::kInt32, encoder);
  batch.encoder.sample_T = Tensor(encoder_samples.data(), DType::kInt64, encoder);
  batch.encoder.sample_position_T = batch.encoder.position_T;
  batch.encoder.cu_seqlens = Tensor(encoder_cu_seqlens.data(), DType::kInt32,
                                    {static_cast<int64_t>(encoder_cu_seqlens.size())});
  batch.encoder.max_seqlen = LongestSequence(encoder_cu_seqlens);
  const Shape of_depths{kMtpDepths, static_cast<int64_t>(tokens.size())};
  batch.mtp = {Tensor(mtp_tokens.data(), DType::kInt32, of_depths),
               Tensor(mtp_labels.data(), DType::kInt32, of_depths),
               Tensor(mtp_loss_weights.data(), DType::kFloat32, of_depths),
               Tensor(mtp_gradient_weights.data(), DType::kFloat32, of_depths)};
  return batch;
}

StageMemorySizes MeasureStage(const ModelOptions& options, int tensor_size, const MicroBatch& batch,
                              bool split) {
  const std::vector<MicroBatch> batches = {MetaBatch(batch)};
  const Device device = {DeviceType::kMeta};
  const ProcessGroup group =
      tensor_size == 1 ? ProcessGroup() : ProcessGroup::ForPlanning(tensor_size, 0, "tp");
  StageSetup setup;
  setup.device = device;
  setup.tensor_group = group;
  const std::unique_ptr<ModelStage> made = MakeStage(options, setup);
  ModelStage& stage = *made;
  StageMemorySizes sizes;
  sizes.deferred[0].count = split ? 1 : 0;
  StageMemory memory(device, sizes, nullptr);
  for (Parameter* parameter : stage.parameters()) {
    parameter->data =
        Tensor(nullptr, options.transformer.dtype, parameter->sharding.local_shape, device);
    parameter->grad = Tensor(nullptr, DType::kFloat32, parameter->sharding.local_shape, device);
  }
  for (StageMode mode : {StageMode::kEvaluate, StageMode::kTrain}) {
    stage.StartStep({&memory, nullptr, &batches, mode});
    stage.Forward({}, {}, {}, Stream::Meta());
  }
  const WorkItem item = {0, 0, 0, split ? 0 : -1};
  stage.Backward(item, {}, {}, Stream::Meta());
  if (split) stage.BackwardWeight(item, Stream::Meta());
  return memory.HighWater();
}

ModelHarness::ModelHarness(const ModelOptions& options, const ProcessGroup& tensor_group,
                           uint64_t seed, int threads, const StagePlacement& placement)
    : pool_(threads), stream_(Stream::Cpu(&pool_)) {
  StageSetup setup;
  setup.ledger = &ledger_;
  setup.placement = placement;
  setup.tensor_group = tensor_group;
  stage_ = MakeStage(options, setup);
  int64_t elements = 0;
  for (Parameter* parameter : stage_->parameters())
    elements += parameter->sharding.local_shape.numel();
  weights_ = Buffer({}, elements * SizeOf(options.transformer.dtype), "weights", &ledger_);
  gradients_ = Buffer({}, elements * SizeOf(DType::kFloat32), "gradients", &ledger_);
  Buffer initial({}, elements * SizeOf(DType::kFloat32), "initial", &ledger_);
  int64_t at = 0;
  for (Parameter* parameter : stage_->parameters()) {
    const Shape& shape = parameter->sharding.local_shape;
    parameter->data =
        weights_.At(at * SizeOf(options.transformer.dtype), options.transformer.dtype, shape);
    parameter->grad = gradients_.At(at * SizeOf(DType::kFloat32), DType::kFloat32, shape);
    const Tensor values = initial.At(at * SizeOf(DType::kFloat32), DType::kFloat32, shape);
    FillInitial(*parameter, seed, values);
    ops::Copy(stream_, values, parameter->data);
    at += shape.numel();
  }
  HostBatch largest = RandomBatch({kMaxTokens - 3, 1, 1, 1}, options.vocab_size, 1);
  memory_ = std::make_unique<StageMemory>(
      Device(), MeasureStage(options, tensor_group.size(), largest.View()), &ledger_);
}

double ModelHarness::TakeLoss() {
  float* sums = stage_->loss_sums().data<float>();
  double loss = 0;
  for (const Measure& measure : stage_->measures()) {
    const double mean = double{sums[0]} / sums[1];
    means_[measure.name] = mean;
    if (measure.is_loss) loss += measure.factor * mean;
    sums[0] = sums[1] = 0;
    sums += 2;
  }
  return loss;
}

void ModelHarness::StartStep(HostBatch* batch, StageMode mode) {
  batches_.assign(1, batch->View());
  stage_->StartStep({memory_.get(), nullptr, &batches_, mode});
}

double ModelHarness::Loss(HostBatch* batch, bool training) {
  StartStep(batch, training ? StageMode::kTrain : StageMode::kEvaluate);
  stage_->Forward({}, {}, {}, stream_);
  return TakeLoss();
}

double ModelHarness::LossAndGradients(HostBatch* batch) {
  StartStep(batch, StageMode::kTrain);
  stage_->Forward({}, {}, {}, stream_);
  stage_->Backward({}, {}, {}, stream_);
  return TakeLoss();
}

std::vector<float> ModelHarness::Logits(HostBatch* batch, int64_t token) {
  std::vector<float> logits(stage_->padded_vocab_size());
  auto number = static_cast<int32_t>(token);
  batches_.assign(1, batch->View());
  stage_->StartStep(
      {memory_.get(), nullptr, &batches_, StageMode::kPredict, Tensor(&number, DType::kInt32, {1}),
       Tensor(logits.data(), DType::kFloat32, {1, static_cast<int64_t>(logits.size())})});
  stage_->Forward({}, {}, {}, stream_);
  return logits;
}

void ModelHarness::ZeroGradients() {
  for (Parameter* parameter : parameters()) ops::Zero(stream_, parameter->grad);
}

Parameter* ModelHarness::Find(const std::string& name) {
  for (Parameter* parameter : parameters()) {
    if (parameter->name == name) return parameter;
  }
  LOG(FATAL) << "no parameter " << name;
}

}  // namespace megatron
