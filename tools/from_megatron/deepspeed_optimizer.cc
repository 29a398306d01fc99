// DeepSpeed's optimizers and their schedules.
#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/config/config.pb.h"
#include "tools/from_megatron/deepspeed_translation.h"

namespace megatron {
namespace {

// Parameters of 1-bit LAMB and of 0/1 Adam that are fields of the same name.
constexpr absl::string_view kOneBitLamb[] = {"coeff_beta", "factor_max", "factor_min",
                                             "factor_threshold"};
constexpr absl::string_view kZeroOneAdam[] = {"var_freeze_step", "var_update_scaler",
                                              "local_step_scaler", "local_step_clipper"};

}  // namespace

absl::Status DeepSpeedTranslation::ApplyOptimizer(const Json& block) {
  if (!block.is_object() || !block.contains("type") || !block["type"].is_string())
    return Wrong("optimizer", "has no type");
  const std::string type = block["type"].get<std::string>();
  const std::string name = absl::AsciiStrToLower(type);
  const Json params = block.value("params", Json::object());
  if (!params.is_object()) return Wrong("optimizer.params", "is no object");
  const bool adam = name == "adam" || name == "adamw";
  const bool one_bit_adam = name == "onebitadam", one_bit_lamb = name == "onebitlamb",
             zero_one_adam = name == "zerooneadam";
  const bool one_bit = one_bit_adam || one_bit_lamb || zero_one_adam;
  const bool lamb = name == "lamb";
  if (!adam && !lamb && !one_bit && name != "lion" && name != "sgd") {
    Find(Effect::kResults, "optimizer.type", type,
         "the optimizers are adam, sgd, lion, lamb, onebitadam, onebitlamb and zerooneadam");
    return absl::OkStatus();
  }
  MEGATRON_RETURN_IF_ERROR(Set("optimizer.optimizer", "optimizer.type",
                               Json(adam            ? "adam"
                                    : one_bit_adam  ? "onebit_adam"
                                    : one_bit_lamb  ? "onebit_lamb"
                                    : zero_one_adam ? "zero_one_adam"
                                                    : name)));
  if (one_bit) {
    Find(Effect::kResults, "optimizer.type", type,
         "clipping in steps with signs and elements without a gradient differ"
         " (docs/one_bit_optimizers.md)");
  }
  if (lamb) {
    Find(Effect::kResults, "optimizer.type", type,
         "the ratio of its step is taken with corrected moments (docs/optimizers.md)");
  }
  const std::string from_default = "DeepSpeed's default";
  for (const auto& [path, value] : std::vector<std::pair<std::string, std::string>>{
           {"optimizer.lr", name == "lion" ? "1e-4" : "1e-3"}, {"optimizer.weight_decay", "0"}}) {
    MEGATRON_RETURN_IF_ERROR(config_.Set(path, {value}, from_default));
  }
  if (name == "sgd") {
    MEGATRON_RETURN_IF_ERROR(config_.Set("optimizer.sgd_momentum", {"0"}, from_default));
  }
  for (const auto& [param, value] : params.items()) {
    const std::string key = absl::StrCat("optimizer.params.", param);
    if (param == "lr") {
      MEGATRON_RETURN_IF_ERROR(Set("optimizer.lr", key, value));
    } else if (param == "weight_decay") {
      MEGATRON_RETURN_IF_ERROR(Set("optimizer.weight_decay", key, value));
    } else if (param == "eps" && (adam || lamb || one_bit)) {
      MEGATRON_RETURN_IF_ERROR(Set("optimizer.adam_eps", key, value));
    } else if (param == "momentum" && name == "sgd") {
      MEGATRON_RETURN_IF_ERROR(Set("optimizer.sgd_momentum", key, value));
    } else if (param == "betas" && name != "sgd") {
      if (value == "auto") continue;
      if (!value.is_array() || value.size() != 2) return Wrong(key, "is no list of two numbers");
      const std::string prefix = name == "lion" ? "optimizer.lion_beta" : "optimizer.adam_beta";
      MEGATRON_RETURN_IF_ERROR(Set(prefix + "1", key, value[0]));
      MEGATRON_RETURN_IF_ERROR(Set(prefix + "2", key, value[1]));
    } else if ((param == "min_coeff" || param == "max_coeff") && (lamb || one_bit_lamb)) {
      MEGATRON_RETURN_IF_ERROR(Set(absl::StrCat("optimizer.lamb_", param), key, value));
    } else if ((param == "freeze_step" && (one_bit_adam || one_bit_lamb)) ||
               (one_bit_lamb && absl::c_linear_search(kOneBitLamb, param)) ||
               (zero_one_adam && absl::c_linear_search(kZeroOneAdam, param))) {
      MEGATRON_RETURN_IF_ERROR(Set(absl::StrCat("optimizer.", param), key, value));
    } else if ((param == "cuda_aware" || param == "comm_backend_name") && one_bit) {
      Find(Effect::kNothing, key, value, "parallel.distributed_backend chooses how ranks send");
    } else if (param == "bias_correction" && one_bit) {
      Find(Effect::kNothing, key, value, "it does not correct its moments, as in DeepSpeed");
    } else if (param == "adam_w_mode" || param == "bias_correction") {
      if (value == false)
        Find(Effect::kResults, key, value, "adam is AdamW, with the correction of its moments");
    } else if (param == "torch_adam" || param == "fused" || param == "foreach") {
      Find(Effect::kNothing, key, value, "there is one implementation of each optimizer");
    } else {
      Find(Effect::kResults, key, value, "the optimizer has no such parameter");
    }
  }
  return absl::OkStatus();
}

absl::Status DeepSpeedTranslation::ApplyScheduler(const Json& block) {
  if (!block.is_object() || !block.contains("type") || !block["type"].is_string())
    return Wrong("scheduler", "has no type");
  const std::string type = block["type"].get<std::string>();
  const Json params = block.value("params", Json::object());
  if (!params.is_object()) return Wrong("scheduler.params", "is no object");
  const bool constant = type == "WarmupLR", linear = type == "WarmupDecayLR",
             cosine = type == "WarmupCosineLR";
  if (!constant && !linear && !cosine) {
    Find(Effect::kResults, "scheduler.type", type,
         "the schedules are WarmupLR, WarmupDecayLR and WarmupCosineLR");
    return absl::OkStatus();
  }
  MEGATRON_RETURN_IF_ERROR(Set("optimizer.lr_decay_style", "scheduler.type",
                               Json(constant ? "constant"
                                    : linear ? "linear"
                                             : "cosine")));
  if (params.value("warmup_type", Json("log")) != "linear") {
    Find(Effect::kResults, "scheduler.params.warmup_type", params.value("warmup_type", Json("log")),
         "the learning rate rises in a straight line");
  }
  MEGATRON_RETURN_IF_ERROR(Set("optimizer.lr_warmup_iters", "scheduler.params.warmup_num_steps",
                               params.value("warmup_num_steps", Json(1000))));
  if (!constant && params.contains("total_num_steps")) {
    MEGATRON_RETURN_IF_ERROR(Set("optimizer.lr_decay_iters", "scheduler.params.total_num_steps",
                                 params["total_num_steps"]));
  }
  if (cosine) {
    const double lr = config_.config().optimizer().lr();
    for (const auto& [name, path, unset] :
         std::vector<std::tuple<std::string, std::string, double>>{
             {"warmup_min_ratio", "optimizer.lr_warmup_init", 0.0},
             {"cos_min_ratio", "optimizer.min_lr", 0.0001}}) {
      const Json ratio = params.value(name, Json(unset));
      if (!ratio.is_number()) return Wrong("scheduler.params." + name, "is no number");
      MEGATRON_RETURN_IF_ERROR(
          Set(path, "scheduler.params." + name, Json(ratio.get<double>() * lr)));
    }
  } else {
    const Json lowest = params.value("warmup_min_lr", Json(0.0));
    MEGATRON_RETURN_IF_ERROR(Set("optimizer.lr", "scheduler.params.warmup_max_lr",
                                 params.value("warmup_max_lr", Json(0.001))));
    MEGATRON_RETURN_IF_ERROR(
        Set("optimizer.lr_warmup_init", "scheduler.params.warmup_min_lr", lowest));
    if (linear) {
      MEGATRON_RETURN_IF_ERROR(Set("optimizer.min_lr", "scheduler.params.warmup_min_lr", lowest));
    }
  }
  for (const auto& [name, value] : params.items()) {
    if (name == "last_batch_iteration" || absl::StartsWith(name, "warmup_") ||
        name == "total_num_steps" || name == "cos_min_ratio") {
      continue;
    }
    Find(Effect::kResults, "scheduler.params." + name, value, "the schedule has no such parameter");
  }
  return absl::OkStatus();
}

}  // namespace megatron
