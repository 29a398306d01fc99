// Writes the reference runs to a folder, for pytorch_reference/compare.py.
//
//   bazel run //tools/interop:dump_run -- --output=/some/folder
//
// The format is described in compare.py.
#include <algorithm>
#include <iostream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/models/huggingface/hf_config.h"
#include "nlohmann/json.hpp"
#include "tools/interop/npy.h"
#include "tools/interop/reference_runs.h"

ABSL_FLAG(std::string, output, "", "The folder to write to; made where there is none.");

namespace megatron {
namespace {

// Returns the configuration in Hugging Face's format, or the one that model.py reads.
absl::StatusOr<nlohmann::json> ModelConfig(const ReferenceRun& run) {
  const ModelOptions& gpt = run.trainer.model;
  if (IsHuggingFaces(run)) {
    MEGATRON_ASSIGN_OR_RETURN(const std::string text, HfConfigJson(gpt, {}));
    return nlohmann::json::parse(text);
  }
  const TransformerOptions& layer = gpt.transformer;
  std::vector<bool> windows, rotations;
  for (int64_t i = 0; i < layer.num_layers; ++i) {
    windows.push_back(layer.HasWindow(i));
    rotations.push_back(layer.Rotates(i));
  }
  std::string letters;
  for (const HybridLayer kind : layer.hybrid_layers) {
    letters += kind == HybridLayer::kMamba       ? 'M'
               : kind == HybridLayer::kDelta     ? 'G'
               : kind == HybridLayer::kAttention ? '*'
                                                 : '-';
  }
  const YarnOptions& yarn = layer.rotary_options.yarn;
  return nlohmann::json{
      {"model_type", gpt.kind == ModelKind::kT5 ? "megatron-t5" : "gpt"},
      {"num_layers", layer.num_layers},
      {"encoder_num_layers", gpt.num_encoder_layers},
      {"hidden_size", layer.hidden_size},
      {"ffn_hidden_size", layer.ffn_hidden_size},
      {"num_attention_heads", layer.num_attention_heads},
      {"num_query_groups", layer.num_query_groups},
      {"kv_channels", layer.kv_channels},
      {"max_positions", gpt.max_positions},
      {"vocab_size", gpt.vocab_size},
      {"padded_vocab_size", gpt.padded_vocab_size},
      {"normalization", layer.norm.kind == ops::Norm::kRmsNorm ? "RMSNorm" : "LayerNorm"},
      {"norm_epsilon", layer.norm.epsilon},
      {"position_embedding_type", layer.rotary            ? "rope"
                                  : gpt.learned_positions ? "learned_absolute"
                                                          : "none"},
      {"rotary_base", layer.rotary_options.base},
      {"rotary_base_local", layer.rotary_options.local_base},
      {"rotates", rotations},
      {"window_size", layer.window_size},
      {"has_window", windows},
      {"softmax_type", layer.sink == AttentionSink::kLearned ? "learnable" : "vanilla"},
      {"yarn_rotary_scaling_factor", yarn.factor},
      {"yarn_original_max_position_embeddings", yarn.original_context},
      {"yarn_beta_fast", yarn.beta_fast},
      {"yarn_beta_slow", yarn.beta_slow},
      {"yarn_mscale", yarn.mscale},
      {"yarn_mscale_all_dim", yarn.mscale_all_dim},
      {"lora_dim", layer.lora.dim},
      {"lora_alpha", layer.lora.alpha},
      {"lora_modules", layer.lora.target_modules},
      {"kv_lora_rank", layer.latent.kv_rank},
      {"q_lora_rank", layer.latent.q_rank},
      {"qk_pos_emb_head_dim", layer.latent.rotated_size},
      {"v_head_dim", layer.value_size()},
      {"softmax_scale", layer.softmax_scale},
      {"hybrid_layer_pattern", letters},
      {"mamba_state_dim", layer.mamba.state_dim},
      {"mamba_head_dim", layer.mamba.head_dim},
      {"mamba_num_groups", layer.mamba.num_groups},
      {"mamba_num_heads", layer.mamba.num_heads},
      {"linear_conv_kernel_dim", layer.delta.conv_taps},
      {"linear_key_head_dim", layer.delta.key_head_dim},
      {"linear_value_head_dim", layer.delta.value_head_dim},
      {"linear_num_key_heads", layer.delta.num_key_heads},
      {"linear_num_value_heads", layer.delta.num_value_heads},
      {"mtp_num_layers", gpt.mtp_num_layers},
      {"mtp_loss_scaling_factor", gpt.mtp_loss_scaling_factor},
      {"swiglu", layer.gated},
      {"gate", layer.gate == ops::Activation::kQuickGelu ? "quick_gelu" : "silu"},
      {"gate_limit", std::min(layer.gate_limit, std::numeric_limits<float>::max())},
      {"gate_offset", layer.gate_offset},
      {"embedding_output_scale", gpt.embedding_output_scale},
      {"output_scale", gpt.output_scale},
      {"disable_bias_linear", !layer.linear_bias},
      {"untie_embeddings_and_output_weights", !gpt.tied_embeddings}};
}

nlohmann::json OptimizerConfig(const TrainerOptions& trainer) {
  const OptimizerOptions& optimizer = trainer.optimizer;
  const OptimizerParamSchedule& schedule = trainer.schedule;
  return {{"optimizer", optimizer.kind == OptimizerOptions::kSgd ? "sgd" : "adam"},
          {"lr", schedule.max_lr},
          {"min_lr", schedule.min_lr},
          {"lr_warmup_samples", schedule.lr_warmup_steps},
          {"lr_decay_samples", schedule.lr_decay_steps},
          {"weight_decay", schedule.end_weight_decay},
          {"adam_beta1", optimizer.adam_beta1},
          {"adam_beta2", optimizer.adam_beta2},
          {"adam_eps", optimizer.adam_epsilon},
          {"sgd_momentum", optimizer.sgd_momentum},
          {"mup_width_mult", trainer.model.mup_width_mult},
          {"clip_grad", trainer.clip_grad}};
}

absl::Status WriteWeights(const std::string& folder,
                          std::map<std::string, ReferenceResult::Weight>* weights) {
  FileSystem& fs = PosixFileSystem();
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(folder));
  for (auto& [name, weight] : *weights) {
    MEGATRON_RETURN_IF_ERROR(WriteNpy(fs, JoinPath(folder, absl::StrCat(name, ".npy")),
                                      Tensor(weight.values.data(), DType::kFloat32, weight.shape)));
  }
  return absl::OkStatus();
}

absl::Status WriteList(const std::string& path, std::vector<float>* values) {
  return WriteNpy(PosixFileSystem(), path,
                  Tensor(values->data(), DType::kFloat32, {static_cast<int64_t>(values->size())}));
}

// Returns the number of each token's document, and -1 behind shorter samples; nothing if samples
// have one each.
std::vector<int32_t> Documents(const std::vector<Sample>& samples) {
  std::vector<int32_t> numbers;
  bool several = false;
  size_t longest = 0;
  for (const Sample& sample : samples) longest = std::max(longest, sample.tokens.size());
  for (const Sample& sample : samples) {
    several = several || sample.document_starts.size() > 1;
    int32_t number = -1;
    for (int32_t t = 0; t < static_cast<int32_t>(sample.tokens.size()); ++t) {
      const size_t next = static_cast<size_t>(number + 1);
      if (next < sample.document_starts.size() && sample.document_starts[next] == t) ++number;
      numbers.push_back(number);
    }
    numbers.resize(numbers.size() + longest - sample.tokens.size(), -1);
  }
  return several ? numbers : std::vector<int32_t>();
}

// Writes [samples, longest], with -1 after the tokens of shorter samples and for labels that do not
// count.
absl::Status WriteSamples(const std::string& folder, std::vector<Sample> samples) {
  for (Sample& sample : samples) {
    for (size_t t = 0; t < sample.labels.size(); ++t) {
      if (sample.loss_mask[t] == 0) sample.labels[t] = -1;
    }
  }
  FileSystem& fs = PosixFileSystem();
  MEGATRON_RETURN_IF_ERROR(fs.CreateDirs(folder));
  using Field = std::vector<int32_t> Sample::*;
  const std::pair<const char*, Field> fields[] = {{"tokens", &Sample::tokens},
                                                  {"labels", &Sample::labels},
                                                  {"types", &Sample::types},
                                                  {"encoder_tokens", &Sample::encoder_tokens}};
  const size_t count = samples.size();
  for (const auto& [name, field] : fields) {
    size_t longest = 0;
    for (const Sample& sample : samples) longest = std::max(longest, (sample.*field).size());
    std::vector<int32_t> padded(count * longest, -1);
    for (size_t i = 0; i < count; ++i) {
      const std::vector<int32_t>& values = samples[i].*field;
      std::copy(values.begin(), values.end(), padded.begin() + static_cast<int64_t>(i * longest));
    }
    const Shape shape = {static_cast<int64_t>(count), static_cast<int64_t>(longest)};
    MEGATRON_RETURN_IF_ERROR(WriteNpy(fs, JoinPath(folder, absl::StrCat(name, ".npy")),
                                      Tensor(padded.data(), DType::kInt32, shape)));
  }
  if (std::vector<int32_t> documents = Documents(samples); !documents.empty()) {
    const int64_t columns = static_cast<int64_t>(documents.size() / count);
    MEGATRON_RETURN_IF_ERROR(
        WriteNpy(fs, JoinPath(folder, "documents.npy"),
                 Tensor(documents.data(), DType::kInt32, {static_cast<int64_t>(count), columns})));
  }
  std::vector<int32_t> classes;
  for (const Sample& sample : samples) classes.push_back(sample.sequence_class);
  return WriteNpy(fs, JoinPath(folder, "classes.npy"),
                  Tensor(classes.data(), DType::kInt32, {static_cast<int64_t>(count)}));
}

absl::Status Dump(const ReferenceRun& run, const Stream& stream, const std::string& output) {
  FileSystem& fs = PosixFileSystem();
  const std::string folder = JoinPath(output, run.name);
  MEGATRON_ASSIGN_OR_RETURN(ReferenceResult result, Train(run, stream));
  MEGATRON_RETURN_IF_ERROR(WriteWeights(JoinPath(folder, "initial"), &result.initial_weights));
  MEGATRON_RETURN_IF_ERROR(WriteWeights(JoinPath(folder, "final"), &result.final_weights));
  MEGATRON_RETURN_IF_ERROR(WriteList(JoinPath(folder, "losses.npy"), &result.losses));
  MEGATRON_RETURN_IF_ERROR(WriteList(JoinPath(folder, "grad_norms.npy"), &result.grad_norms));
  MEGATRON_RETURN_IF_ERROR(WriteSamples(JoinPath(folder, "samples"), ReferenceSamples(run)));
  MEGATRON_ASSIGN_OR_RETURN(const nlohmann::json model, ModelConfig(run));
  const nlohmann::json config = {{"model", model},
                                 {"optimizer", OptimizerConfig(run.trainer)},
                                 {"train_iters", run.train_iters},
                                 {"global_batch_size", run.trainer.batch_size.global_batch_size}};
  return WriteFileAtomically(fs, JoinPath(folder, "config.json"), config.dump(2) + "\n");
}

int Main() {
  constexpr int kConfigError = 20, kIoError = 23;
  const std::string output = absl::GetFlag(FLAGS_output);
  if (output.empty()) {
    std::cerr << "--output=FOLDER is needed\n";
    return kConfigError;
  }
  ThreadPool pool(AvailableCores());
  for (const ReferenceRun& run : ReferenceRuns()) {
    if (absl::Status status = Dump(run, Stream::Cpu(&pool), output); !status.ok()) {
      std::cerr << run.name << ": " << status << "\n";
      return kIoError;
    }
    std::cout << "wrote " << JoinPath(output, run.name) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Writes the reference runs for pytorch_reference/compare.py.");
  absl::ParseCommandLine(argc, argv);
  return megatron::Main();
}
