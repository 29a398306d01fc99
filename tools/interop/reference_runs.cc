#include "tools/interop/reference_runs.h"

#include <cmath>
#include <memory>
#include <utility>

#include "megatron/base/status_macros.h"
#include "megatron/models/huggingface/hf_weights.h"
#include "megatron/optim/mup.h"
#include "tools/interop/reference_samples.h"

namespace megatron {
namespace {

constexpr int64_t kIterations = 20;
constexpr int64_t kGlobalBatch = 4;
constexpr int64_t kMicroBatch = 2;
constexpr uint64_t kSeed = 1234;

ModelOptions Gpt2() {
  ModelOptions gpt;
  TransformerOptions& layer = gpt.transformer;
  layer.num_layers = 3;
  layer.hidden_size = 64;
  layer.ffn_hidden_size = 256;
  layer.num_attention_heads = layer.num_query_groups = 4;
  layer.kv_channels = 16;
  layer.hidden_dropout = layer.attention_dropout = 0;
  layer.output_init_std = static_cast<float>(0.02 / std::sqrt(2.0 * 3));
  gpt.vocab_size = kReferenceVocab;
  gpt.padded_vocab_size = 128;
  gpt.max_positions = kReferenceLength;
  return gpt;
}

ModelOptions Llama() {
  ModelOptions gpt = Gpt2();
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

// Returns a model whose layers see, in their order: a window, everything with YaRN, and a window
// without rotation.
ModelOptions Windowed() {
  ModelOptions gpt = Llama();
  TransformerOptions& layer = gpt.transformer;
  layer.window_size = 6;
  layer.window_layers = {true, false, true};
  layer.rotary_layers = {true, true, false};
  layer.sink = AttentionSink::kLearned;
  layer.rotary_options.local_base = 500;
  layer.rotary_options.yarn.factor = 4;
  layer.rotary_options.yarn.original_context = 16;
  layer.rotary_options.yarn.beta_fast = 2;
  layer.rotary_options.yarn.beta_slow = 0.25;
  return gpt;
}

// Returns a model that reads conversations.
ModelOptions Chat() {
  ModelOptions gpt = Gpt2();
  gpt.vocab_size = 257;
  gpt.padded_vocab_size = 384;
  gpt.max_positions = kReferenceChatLength;
  return gpt;
}

// Returns the model with adapters, beside which nothing is trained. They have more to do with a
// large word table, which is the output matrix too.
ModelOptions Adapted(ModelOptions model) {
  model.embedding_init_std = 0.1f;
  model.tied_embeddings = true;
  model.transformer.lora = {
      /*dim=*/4, /*alpha=*/16, {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}};
  return model;
}

// Returns a model with latent attention, YaRN and two layers of multi-token prediction.
ModelOptions Latent() {
  ModelOptions gpt = Llama();
  TransformerOptions& layer = gpt.transformer;
  layer.num_query_groups = layer.num_attention_heads;
  layer.kv_channels = 12;
  layer.value_channels = 10;
  layer.latent = {/*kv_rank=*/24, /*q_rank=*/20, /*rotated_size=*/4};
  layer.qk_norm = true;
  layer.rotary_options.interleaved = true;
  YarnOptions& yarn = layer.rotary_options.yarn;
  yarn.factor = 4;
  yarn.original_context = 16;
  yarn.beta_fast = 2;
  yarn.beta_slow = 0.25;
  yarn.mscale_all_dim = 1;
  layer.softmax_scale = 0.4f;
  gpt.mtp_num_layers = 2;
  gpt.mtp_loss_scaling_factor = 0.3f;
  return gpt;
}

// Returns a model with gpt-oss's gates, some of which are beyond the limit.
ModelOptions Gated() {
  ModelOptions gpt = Llama();
  TransformerOptions& layer = gpt.transformer;
  layer.linear_bias = layer.qkv_bias = true;
  layer.gate = ops::Activation::kQuickGelu;
  layer.gate_limit = 0.3f;
  layer.gate_offset = 1;
  return gpt;
}

// Returns a model that is four times as wide as the one that its hyperparameters are for.
ModelOptions Mup() {
  ModelOptions gpt = Gpt2();
  gpt.tied_embeddings = false;
  gpt.mup_width_mult = 4;
  gpt.embedding_output_scale = 2;
  gpt.output_scale = 0.5f;
  gpt.transformer.softmax_scale = 2.0f / 16;
  return gpt;
}

// Returns a model of layers with one branch: Mamba-2, an MLP, a gated delta net, attention.
ModelOptions Hybrid() {
  ModelOptions gpt = Llama();
  TransformerOptions& layer = gpt.transformer;
  layer.num_layers = 4;
  layer.rotary = false;
  layer.hybrid_layers = {HybridLayer::kMamba, HybridLayer::kMlp, HybridLayer::kDelta,
                         HybridLayer::kAttention};
  layer.mamba = {/*state_dim=*/10, /*head_dim=*/12, /*num_groups=*/2, /*num_heads=*/8};
  layer.delta = {/*conv_taps=*/3, /*key_head_dim=*/10, /*value_head_dim=*/14,
                 /*num_key_heads=*/2, /*num_value_heads=*/4};
  return gpt;
}

// Returns a BERT like Megatron's, or with post_norm like the paper's.
ModelOptions Bert(bool post_norm) {
  ModelOptions bert = Gpt2();
  TransformerOptions& layer = bert.transformer;
  layer.name = "encoder";
  layer.causal = false;
  layer.post_norm = post_norm;
  layer.activation = ops::Activation::kGeluErf;
  layer.norm.epsilon = post_norm ? 1e-12f : 1e-5f;
  bert.num_token_types = 2;
  bert.kind = ModelKind::kBert;
  bert.sentence_order_head = true;
  return bert;
}

// Returns a BERT that tells classes apart. With large weights they are learned in 20 steps.
ModelOptions Classifier(bool post_norm) {
  ModelOptions bert = Bert(post_norm);
  bert.num_classes = kReferenceClasses;
  bert.transformer.init_std = 0.1f;
  return bert;
}

// Returns a BERT that tells which of several sequences is the right one. What their gradients have
// in common cancels; with large weights the sequences differ by more than rounding error.
ModelOptions Chooser() {
  ModelOptions bert = Bert(/*post_norm=*/true);
  bert.num_classes = 1;
  bert.num_choices = kReferenceChoices;
  bert.transformer.init_std = bert.transformer.output_init_std = 0.1f;
  return bert;
}

ModelOptions MegatronT5() {
  ModelOptions t5 = Gpt2();
  t5.kind = ModelKind::kT5;
  t5.num_encoder_layers = 2;
  t5.transformer.num_layers = 2;
  t5.output_bias = true;
  return t5;
}

// Returns a T5 as published: 1.0, whose MLP has a ReLU, or 1.1 with a gate and an output matrix of
// its own.
ModelOptions T5(bool version_1_1) {
  ModelOptions t5 = MegatronT5();
  TransformerOptions& layer = t5.transformer;
  layer.kv_channels = 24;
  layer.norm.kind = ops::Norm::kRmsNorm;
  layer.norm.epsilon = 1e-6f;
  layer.linear_bias = layer.qkv_bias = t5.output_bias = t5.learned_positions = false;
  layer.relative_positions = {16, 20};
  layer.softmax_scale = 1;
  layer.activation = ops::Activation::kRelu;
  layer.gated = version_1_1;
  layer.gate = ops::Activation::kGeluTanh;
  t5.embedding_init_std = 1;
  t5.tied_embeddings = !version_1_1;
  if (t5.tied_embeddings) t5.output_scale = 1 / std::sqrt(static_cast<float>(layer.hidden_size));
  return t5;
}

// Returns a Falcon, whose layers have parallel branches: behind one norm, with one head of keys; or
// behind a norm each, with a head of keys for two of queries.
ModelOptions Falcon(bool one_norm) {
  ModelOptions gpt = Gpt2();
  TransformerOptions& layer = gpt.transformer;
  layer.num_query_groups = one_norm ? 1 : 2;
  layer.activation = ops::Activation::kGeluErf;
  layer.linear_bias = layer.qkv_bias = false;
  layer.rotary = layer.parallel_residual = true;
  layer.parallel_shared_norm = one_norm;
  gpt.learned_positions = false;
  return gpt;
}

bool IsChat(const ReferenceRun& run) {
  return run.trainer.model.max_positions == kReferenceChatLength;
}

ReferenceRun MakeRun(const std::string& name, const ModelOptions& model,
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
  if (model.mup_width_mult != 1) {
    schedule.scaled_lr_factor = MupLrFactor(optimizer, model.mup_width_mult);
    run.trainer.optimizer.adam_epsilon = 1e-3;  // so that it matters
    schedule.max_lr *= 2;
    schedule.min_lr *= 2;
  }
  // Where states decay at once, the gradients of their decays are as small as rounding errors.
  if (model.transformer.HasStates()) run.trainer.optimizer.adam_epsilon = 1e-5;
  if (model.transformer.lora.dim > 0) {
    run.trainer.freeze = {R"(^(?!.*\.adapter\.))"};
    run.trainer.clip_grad = 0.3;  // below the norms of their gradients
    schedule.max_lr *= 2;
    schedule.min_lr *= 2;
  }
  run.trainer.batch_size.global_batch_size = kGlobalBatch;
  run.trainer.batch_size.granularity = kMicroBatch;
  PackerOptions& packing = run.trainer.packing;
  packing.layout.micro_batch_size = kMicroBatch;
  packing.max_micro_batches = kGlobalBatch / kMicroBatch;
  packing.has_classes = model.kind == ModelKind::kBert;
  packing.sequences_per_sample = model.num_choices;
  packing.mtp_depths = model.mtp_num_layers;
  if (model.mtp_num_layers > 0) {
    packing.mtp_loss_factor =
        model.mtp_loss_scaling_factor / static_cast<float>(model.mtp_num_layers);
  }
  const bool has_encoder = model.kind == ModelKind::kT5;
  packing.seq_length = has_encoder ? kReferenceDecoderLength : kReferenceLength;
  packing.seq_length *= model.num_choices;
  if (IsChat(run)) packing.seq_length = kReferenceChatLength;
  packing.encoder_seq_length = has_encoder ? kReferenceLength : 0;
  return run;
}

// The memory is sized by a run on the meta device, as in every run.
absl::StatusOr<std::unique_ptr<Trainer>> MakeTrainer(const ReferenceRun& run, const Stream& stream,
                                                     MemoryLedger* ledger) {
  const LossScaler scaler = LossScaler::MakeConstant(1);
  MemoryLedger planned;
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> plan,
                            Trainer::Create(run.trainer, scaler, {}, {}, Stream::Meta(), &planned));
  return Trainer::Create(run.trainer, scaler, {}, plan->Measure(), stream, ledger);
}

std::map<std::string, ReferenceResult::Weight> Weights(const ReferenceRun& run, Trainer& trainer) {
  std::map<std::string, ReferenceResult::Weight> ours, theirs;
  // Weights in fp32 are their own masters.
  for (const FlatParameter& flat : trainer.buffers().parameters()) {
    const Tensor& data = flat.parameter->data;
    const float* values = data.data<float>();
    ours[flat.parameter->name] = {flat.parameter->sharding.local_shape,
                                  std::vector<float>(values, values + data.numel())};
  }
  if (!IsHuggingFaces(run)) return ours;
  for (const HfTensor& tensor : HfTensors(run.trainer.model)) {
    ReferenceResult::Weight& weight = theirs[tensor.name];
    weight.shape = Shape(tensor.shape);
    weight.values.resize(static_cast<size_t>(weight.shape.numel()));
    CopyToHf(tensor, sizeof(float),
             reinterpret_cast<const char*>(ours.at(tensor.parameter).values.data()),
             reinterpret_cast<char*>(weight.values.data()));
  }
  return theirs;
}

}  // namespace

bool IsHuggingFaces(const ReferenceRun& run) {
  const ModelOptions& model = run.trainer.model;
  return model.kind == ModelKind::kBert || model.transformer.parallel_residual ||
         (model.kind == ModelKind::kT5 && !model.learned_positions);
}

std::vector<ReferenceRun> ReferenceRuns() {
  const std::pair<const char*, ModelOptions> models[] = {{"gpt2", Gpt2()},
                                                         {"llama", Llama()},
                                                         {"windowed", Windowed()},
                                                         {"latent", Latent()},
                                                         {"hybrid", Hybrid()},
                                                         {"mup", Mup()},
                                                         {"gpt2_sft", Chat()},
                                                         {"gpt2_lora", Adapted(Gpt2())},
                                                         {"llama_lora", Adapted(Llama())},
                                                         {"bert", Bert(true)},
                                                         {"megatron_bert", Bert(false)},
                                                         {"t5", T5(false)},
                                                         {"t5_v1_1", T5(true)},
                                                         {"megatron_t5", MegatronT5()},
                                                         {"falcon_one_norm", Falcon(true)},
                                                         {"falcon_two_norms", Falcon(false)}};
  std::vector<ReferenceRun> runs;
  for (const auto& [name, model] : models) {
    runs.push_back(MakeRun(std::string(name) + "_adam", model, OptimizerOptions::kAdamW));
    runs.push_back(MakeRun(std::string(name) + "_sgd", model, OptimizerOptions::kSgd));
  }
  // A number at the limit of a gate has one gradient or none by its rounding, of which AdamW makes
  // steps of full size. So it does of rounding errors where the gradients of choices cancel.
  runs.push_back(MakeRun("gated_sgd", Gated(), OptimizerOptions::kSgd));
  runs.push_back(MakeRun("bert_classes_adam", Classifier(true), OptimizerOptions::kAdamW));
  runs.push_back(MakeRun("megatron_bert_classes_sgd", Classifier(false), OptimizerOptions::kSgd));
  runs.push_back(MakeRun("bert_choices_sgd", Chooser(), OptimizerOptions::kSgd));
  return runs;
}

std::vector<Sample> ReferenceSamples(const ReferenceRun& run) {
  const int64_t count = run.train_iters * run.trainer.batch_size.global_batch_size;
  if (run.trainer.model.num_choices > 1) return ChoiceSamples(count);
  if (run.trainer.model.num_classes > 0) return ClassifiedSamples(count);
  if (run.trainer.model.kind == ModelKind::kBert) return MaskedSamples(count);
  if (IsChat(run)) return ChatSamples(count);
  return run.trainer.model.kind == ModelKind::kT5 ? SpanSamples(count) : NextTokenSamples(count);
}

absl::StatusOr<ReferenceResult> Train(const ReferenceRun& run, const Stream& stream) {
  MemoryLedger ledger;
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer, MakeTrainer(run, stream, &ledger));
  trainer->InitializeWeights(kSeed);
  const SampleList source(ReferenceSamples(run));
  ReferenceResult result;
  result.initial_weights = Weights(run, *trainer);
  for (int64_t i = 0; i < run.train_iters; ++i) {
    MEGATRON_ASSIGN_OR_RETURN(const StepReport report, trainer->Step(source));
    if (!report.update.applied) return absl::InternalError(run.name + " diverged");
    result.losses.push_back(static_cast<float>(report.loss));
    result.grad_norms.push_back(static_cast<float>(report.update.grad_norm));
  }
  result.final_weights = Weights(run, *trainer);
  return result;
}

}  // namespace megatron
