#include "megatron/train/validate/validate_experts.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "megatron/train/validate/layer_pattern.h"

namespace megatron {
namespace {

constexpr char kExperts[] = "model.num_experts";
constexpr char kTopk[] = "model.moe_router_topk";
constexpr char kExpertRanks[] = "parallel.expert_model_parallel_size";
constexpr char kExpertTensor[] = "parallel.expert_tensor_parallel_size";

void CheckGroups(ConfigChecker& check) {
  constexpr char kGroups[] = "model.moe_router_num_groups";
  constexpr char kGroupTopk[] = "model.moe_router_group_topk";
  const config::ModelConfig& model = check.resolved().model();
  if (!check.IsWritten(kGroups)) {
    check.HaveNoEffect({kGroupTopk}, "without model.moe_router_num_groups");
    return;
  }
  if (!check.IsWritten(kGroupTopk)) {
    check.Error(kGroups, "needs model.moe_router_group_topk");
    return;
  }
  check.MustDivide(kGroups, kExperts, model.moe_router_num_groups(), model.num_experts());
  check.MustDivide(kGroupTopk, kTopk, model.moe_router_group_topk(), model.moe_router_topk());
  if (!check.Usable({kGroups, kGroupTopk, kExperts, kTopk})) return;
  if (model.moe_router_group_topk() >= model.moe_router_num_groups()) {
    check.Error(kGroupTopk, absl::StrCat("must be less than ", check.Named(kGroups)));
  } else if (model.num_experts() / model.moe_router_num_groups() * model.moe_router_group_topk() <
             model.moe_router_topk()) {
    check.Error(kGroupTopk, absl::StrCat("of ", check.Named(kGroups), " have fewer experts than ",
                                         check.Named(kTopk)));
  }
}

void CheckRouter(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  if (model.moe_router_load_balancing_type() == config::RouterLoadBalancing::sinkhorn) {
    check.MustNotExceed(kTopk, kExperts, static_cast<double>(model.moe_router_topk()),
                        static_cast<double>(model.num_experts()));
    return check.HaveNoEffect(
        {"model.moe_router_score_function", "model.moe_router_pre_softmax",
         "model.moe_router_topk_scaling_factor", "model.moe_router_num_groups",
         "model.moe_router_group_topk", "model.moe_router_enable_expert_bias",
         "model.moe_router_bias_update_rate"},
        absl::StrCat("with ", check.Named("model.moe_router_load_balancing_type")));
  }
  const std::string score = absl::StrCat("with ", check.Named("model.moe_router_score_function"));
  const bool sigmoid = model.moe_router_score_function() == config::RouterScoreFunction::sigmoid;
  check.MustNotExceed(kTopk, kExperts, static_cast<double>(model.moe_router_topk()),
                      static_cast<double>(model.num_experts()));
  if (sigmoid) {
    check.HaveNoEffect({"model.moe_router_pre_softmax"}, score);
  } else if (model.moe_router_topk() == 1 && !model.moe_router_pre_softmax()) {
    check.Error(kTopk,
                "makes a softmax over one expert, which is 1 whatever the router says: set "
                "model.moe_router_pre_softmax");
  }
  if (!model.moe_router_enable_expert_bias()) {
    check.HaveNoEffect({"model.moe_router_bias_update_rate"},
                       "without model.moe_router_enable_expert_bias");
  } else if (!sigmoid) {
    check.Error("model.moe_router_enable_expert_bias",
                absl::StrCat("needs model.moe_router_score_function: sigmoid; ", score,
                             " scores have no scale that a bias could be added in"));
  }
  CheckGroups(check);
}

void CheckLosses(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  const auto type = model.moe_router_load_balancing_type();
  if (type == config::RouterLoadBalancing::none || type == config::RouterLoadBalancing::sinkhorn) {
    if (model.moe_aux_loss_coeff() != 0 || type == config::RouterLoadBalancing::sinkhorn) {
      check.HaveNoEffect(
          {"model.moe_aux_loss_coeff"},
          absl::StrCat("with ", check.Named("model.moe_router_load_balancing_type")));
    }
  }
  if (type != config::RouterLoadBalancing::sinkhorn && model.moe_aux_loss_coeff() == 0) {
    check.HaveNoEffect({"model.moe_router_load_balancing_type"},
                       "without model.moe_aux_loss_coeff");
  }
  if (!check.IsWritten("model.moe_expert_capacity_factor")) {
    check.HaveNoEffect({"model.moe_token_drop_policy", "model.moe_pad_expert_input_to_capacity"},
                       "without model.moe_expert_capacity_factor");
  }
}

void CheckSamplesOfAnyLength(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  const std::string because =
      absl::StrCat("does not work together with ", check.Named("model.model_type"),
                   ", whose samples have any length");
  if (check.IsWritten("model.moe_expert_capacity_factor"))
    check.Error("model.moe_expert_capacity_factor", because);
  const auto type = model.moe_router_load_balancing_type();
  if (type != config::RouterLoadBalancing::seq_aux_loss &&
      type != config::RouterLoadBalancing::none) {
    check.Error("model.moe_router_load_balancing_type", because);
  }
}

void CheckExpertLayout(ConfigChecker& check) {
  constexpr char kTensor[] = "parallel.tensor_model_parallel_size";
  constexpr char kContext[] = "parallel.context_parallel_size";
  constexpr char kData[] = "parallel.data_parallel_size";
  constexpr char kShared[] = "model.moe_shared_expert_intermediate_size";
  const config::ModelConfig& model = check.resolved().model();
  const config::ParallelConfig& parallel = check.resolved().parallel();
  const int64_t ranks = parallel.expert_model_parallel_size();
  const int64_t parts = parallel.expert_tensor_parallel_size();
  check.MustDivide(kExpertRanks, kExperts, ranks, model.num_experts());
  check.MustDivide(kExpertTensor, "model.moe_ffn_hidden_size", parts, model.moe_ffn_hidden_size());
  if (check.IsWritten(kShared)) {
    check.MustDivide(kTensor, kShared, parallel.tensor_model_parallel_size(),
                     model.moe_shared_expert_intermediate_size());
  }
  const int64_t stage_ranks = parallel.tensor_model_parallel_size() *
                              parallel.context_parallel_size() * parallel.data_parallel_size();
  if (check.Usable({kExpertRanks, kExpertTensor, kTensor, kContext, kData}) &&
      stage_ranks % (ranks * parts) != 0) {
    check.Error(
        kExpertRanks,
        absl::StrCat("times ", check.Named(kExpertTensor), " must divide ", check.Named(kTensor),
                     " times ", check.Named(kContext), " times ", check.Named(kData),
                     ": experts are shared out over ranks of one pipeline stage"));
  }
}

}  // namespace

void CheckExperts(ConfigChecker& check) {
  if (!check.IsWritten(kExperts)) {
    check.HaveNoEffect({"model.moe_layer_freq",
                        "model.moe_ffn_hidden_size",
                        kTopk,
                        "model.moe_router_score_function",
                        "model.moe_router_pre_softmax",
                        "model.moe_router_topk_scaling_factor",
                        "model.moe_router_num_groups",
                        "model.moe_router_group_topk",
                        "model.moe_router_load_balancing_type",
                        "model.moe_aux_loss_coeff",
                        "model.moe_z_loss_coeff",
                        "model.moe_router_enable_expert_bias",
                        "model.moe_router_bias_update_rate",
                        "model.moe_expert_capacity_factor",
                        "model.moe_token_drop_policy",
                        "model.moe_pad_expert_input_to_capacity",
                        "model.moe_input_jitter_eps",
                        "model.moe_shared_expert_intermediate_size",
                        kExpertRanks,
                        kExpertTensor},
                       "without model.num_experts");
    return;
  }
  const config::ModelConfig& model = check.resolved().model();
  if (!model.disable_bias_linear()) {
    check.Error(kExperts,
                "needs model.disable_bias_linear: true; experts have no biases "
                "(model.add_qkv_bias gives attention its own)");
  }
  if (model.model_type() == config::ModelType::bert) CheckSamplesOfAnyLength(check);
  if (check.Usable({"model.num_layers"})) {
    const absl::Status pattern =
        ParseLayerPattern(model.moe_layer_freq(), model.num_layers()).status();
    if (!pattern.ok()) check.Error("model.moe_layer_freq", pattern.message());
  }
  CheckRouter(check);
  CheckLosses(check);
  CheckExpertLayout(check);
}

}  // namespace megatron
