#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/layer_pattern.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr absl::string_view kPattern = "model.hybrid_layer_pattern";

class Hybrid {
 public:
  Hybrid(ConfigChecker& check, const std::string& layers)
      : check_(check),
        layers_(layers),
        model_(check.resolved().model()),
        parallel_(check.resolved().parallel()) {}

  void Check() const {
    CheckLayers();
    CheckAnyLayers();
    if (Has('M')) CheckMamba();
    if (Has('G')) CheckDelta();
    if (Has('M') || Has('G')) CheckStates();
  }

 private:
  bool Has(char layer) const { return layers_.find(layer) != std::string::npos; }

  // Refuses the field at `path`, if `broken`.
  void Refuse(bool broken, absl::string_view path, absl::string_view because) const {
    if (broken && check_.Usable({path}))
      check_.Error(kPattern,
                   absl::StrCat("cannot be used with ", check_.Named(path), ": ", because));
  }

  void CheckLayers() const {
    constexpr absl::string_view kLayers = "model.num_layers", kExperts = "model.num_experts";
    if (check_.Usable({kLayers}) && model_.num_layers() != static_cast<int64_t>(layers_.size())) {
      check_.Error(kPattern, absl::StrCat("has ", layers_.size(), " layers, not ",
                                          check_.Named(kLayers), "; leave that out"));
    }
    if (Has('E') && !check_.IsWritten(kExperts))
      check_.Error(kPattern, absl::StrCat("has layers E of experts: set ", kExperts));
    if (!Has('E') && check_.IsWritten(kExperts)) {
      check_.Error(kExperts, absl::StrCat("has no effect: ", check_.Named(kPattern),
                                          " has no layer E of experts"));
    }
    CheckFrequency();
    if (!Has('M')) {
      check_.HaveNoEffect(
          {"model.mamba_state_dim", "model.mamba_head_dim", "model.mamba_num_groups",
           "model.mamba_num_heads", "model.mamba_norm_all_groups"},
          absl::StrCat("without a layer M in ", check_.Named(kPattern)));
    }
    if (!Has('G')) {
      check_.HaveNoEffect({"model.linear_conv_kernel_dim", "model.linear_key_head_dim",
                           "model.linear_value_head_dim", "model.linear_num_key_heads",
                           "model.linear_num_value_heads"},
                          absl::StrCat("without a layer G in ", check_.Named(kPattern)));
    }
    if (!Has('*')) {
      check_.HaveNoEffect({"model.qk_layernorm", "model.window_size", "model.softmax_type",
                           "model.multi_latent_attention", "model.attention_output_gate"},
                          absl::StrCat("without a layer * in ", check_.Named(kPattern)));
    }
    if (!Has('-')) {
      check_.HaveNoEffect({"model.add_mlp_bias"},
                          absl::StrCat("without a layer - in ", check_.Named(kPattern)));
    }
  }

  // Checks that model.moe_layer_freq says the same, as it does in configurations that are written
  // out.
  void CheckFrequency() const {
    if (!model_.has_num_experts() || !check_.IsWritten("model.moe_layer_freq")) return;
    const absl::StatusOr<std::vector<bool>> has_experts =
        ParseLayerPattern(model_.moe_layer_freq(), static_cast<int64_t>(layers_.size()));
    if (!has_experts.ok()) return;  // another rule says so
    for (size_t i = 0; i < layers_.size(); ++i) {
      if ((*has_experts)[i] == (layers_[i] == 'E')) continue;
      check_.Error("model.moe_layer_freq",
                   absl::StrCat("is not what ", check_.Named(kPattern), " says; leave it out"));
      return;
    }
  }

  // What models with layers of one branch cannot be used with.
  void CheckAnyLayers() const {
    const config::PretrainConfig& config = check_.resolved();
    Refuse(model_.post_norm(), "model.post_norm", "norms stand in front of its layers");
    Refuse(model_.reordered_norm(), "model.reordered_norm", "norms stand in front of its layers");
    Refuse(model_.use_mup(), "model.use_mup", "the widths of its layers do not grow alike");
    Refuse(model_.sandwich_norm(), "model.sandwich_norm",
           "norms stand in front of its layers alone");
    Refuse(check_.IsWritten("model.mtp_num_layers"), "model.mtp_num_layers",
           "a layer of multi-token prediction has attention and an MLP");
    Refuse(model_.has_lora(), "model.lora.dim", "not all of its layers have adapters");
    Refuse(config.data().has_random_ltd(), "data.random_ltd.min_value",
           "its layers need all tokens");
    Refuse(config.optimizer().qk_clip(), "optimizer.qk_clip",
           "the scores of its layers are not measured");
    Refuse(config.precision().fp8_format() != config::Fp8Format::none, "precision.fp8_format",
           "its products are in the type of the activations");
    Refuse(!check_.IsDefault("parallel.tensor_parallel_mode"), "parallel.tensor_parallel_mode",
           "its layers are cut by 1d tensor parallelism alone");
  }

  void CheckMamba() const {
    constexpr absl::string_view kHead = "model.mamba_head_dim", kHeads = "model.mamba_num_heads",
                                kGroups = "model.mamba_num_groups";
    if (!check_.IsWritten(kHeads) && check_.Usable({kHead, "model.hidden_size"}) &&
        2 * model_.hidden_size() % model_.mamba_head_dim() != 0) {
      check_.Error(kHead, absl::StrCat("must divide 2 times ", check_.Named("model.hidden_size"),
                                       ", or ", kHeads, " be set"));
      return;
    }
    check_.MustDivide(kGroups, kHeads, model_.mamba_num_groups(), model_.mamba_num_heads());
    CheckShares(kGroups, model_.mamba_num_groups());
    CheckWidth(kHeads, kHead, model_.mamba_num_heads(), model_.mamba_head_dim());
  }

  void CheckDelta() const {
    constexpr absl::string_view kKeys = "model.linear_num_key_heads",
                                kValues = "model.linear_num_value_heads";
    check_.MustDivide(kKeys, kValues, model_.linear_num_key_heads(),
                      model_.linear_num_value_heads());
    CheckShares(kKeys, model_.linear_num_key_heads());
    CheckWidth(kKeys, "model.linear_key_head_dim", model_.linear_num_key_heads(),
               model_.linear_key_head_dim());
    CheckWidth(kValues, "model.linear_value_head_dim", model_.linear_num_value_heads(),
               model_.linear_value_head_dim());
  }

  // Checks the width of all heads together.
  void CheckWidth(absl::string_view heads, absl::string_view channels, int64_t count,
                  int64_t width) const {
    constexpr double kWidest = 1 << 22;
    if (!check_.Usable({heads, channels}) ||
        static_cast<double>(count) * static_cast<double>(width) <= kWidest) {
      return;
    }
    check_.Error(heads, absl::StrCat("times ", check_.Named(channels), " must be at most ",
                                     static_cast<int64_t>(kWidest)));
  }

  // Checks that tensor- and context-parallel ranks can share out the field's groups of heads.
  void CheckShares(absl::string_view groups, int64_t count) const {
    constexpr absl::string_view kTensor = "parallel.tensor_model_parallel_size",
                                kContext = "parallel.context_parallel_size";
    const int64_t tensor = parallel_.tensor_model_parallel_size(),
                  context = parallel_.context_parallel_size();
    if (!check_.Usable({groups, kTensor, kContext}) || count % (tensor * context) == 0) return;
    check_.Error(groups, absl::StrCat("must be divisible by ", check_.Named(kTensor), " times ",
                                      check_.Named(kContext)));
  }

  // What layers that hand a state from token to token cannot be used with.
  void CheckStates() const {
    Refuse(parallel_.context_parallel_size() > 1 &&
               parallel_.cp_comm_type() == config::ContextParallelComm::a2a_p2p,
           "parallel.cp_comm_type", "all context-parallel ranks exchange tokens for heads");
  }

  ConfigChecker& check_;
  const std::string& layers_;
  const config::ModelConfig& model_;
  const config::ParallelConfig& parallel_;
};

}  // namespace

void CheckHybridLayers(ConfigChecker& check) {
  if (!check.IsWritten(kPattern)) return;
  const absl::StatusOr<std::string> layers = HybridLayers(check.resolved().model());
  if (!layers.ok()) return check.Error(kPattern, layers.status().message());
  Hybrid(check, *layers).Check();
}

}  // namespace megatron
