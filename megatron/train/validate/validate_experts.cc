#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "megatron/train/config/layer_pattern.h"
#include "megatron/train/recipes/model_rules_of.h"
#include "megatron/train/validate/rules.h"

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
  if (!check.IsWritten(kGroups)) return;
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
  check.MustNotExceed(kTopk, kExperts, static_cast<double>(model.moe_router_topk()),
                      static_cast<double>(model.num_experts()));
  if (model.moe_router_load_balancing_type() == config::RouterLoadBalancing::sinkhorn) return;
  const std::string score = absl::StrCat("with ", check.Named("model.moe_router_score_function"));
  const bool sigmoid = model.moe_router_score_function() == config::RouterScoreFunction::sigmoid;
  if (!sigmoid && model.moe_router_topk() == 1 && !model.moe_router_pre_softmax()) {
    check.Error(kTopk,
                "makes a softmax over one expert, which is 1 whatever the router says: set "
                "model.moe_router_pre_softmax");
  }
  if (model.moe_router_enable_expert_bias() && !sigmoid) {
    check.Error("model.moe_router_enable_expert_bias",
                absl::StrCat("needs model.moe_router_score_function: sigmoid; ", score,
                             " scores have no scale that a bias could be added in"));
  }
  CheckGroups(check);
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
  if (!check.Usable({kExpertRanks, kExpertTensor, kTensor, kContext, kData})) return;
  if (stage_ranks % (ranks * parts) != 0) {
    check.Error(
        kExpertRanks,
        absl::StrCat("times ", check.Named(kExpertTensor), " must divide ", check.Named(kTensor),
                     " times ", check.Named(kContext), " times ", check.Named(kData),
                     ": experts are shared out over ranks of one pipeline stage"));
  } else if (stage_ranks == ranks * parts &&
             parallel.context_parallel_size() * parallel.data_parallel_size() == 1) {
    check.HaveNoEffect({"parallel.use_distributed_optimizer", "parallel.overlap_grad_reduce",
                        "parallel.grad_reduce_in_bf16", "parallel.communication_data_type",
                        "parallel.ddp_bucket_size"},
                       absl::StrCat("with ", check.Named(kData), " and ", check.Named(kContext),
                                    ": no weight has copies on other ranks"));
  }
}

}  // namespace

void CheckExperts(ConfigChecker& check) {
  if (!check.IsWritten(kExperts)) return;
  const config::ModelConfig& model = check.resolved().model();
  constexpr char kShared[] = "model.moe_shared_expert_intermediate_size";
  if (!model.disable_bias_linear() && check.IsWritten(kShared)) {
    check.Error(kShared,
                "needs model.disable_bias_linear: true, as in Megatron; a shared expert has no "
                "biases (model.add_qkv_bias gives attention its own)");
  }
  if (ModelRulesOf(model).filling() != SampleFilling::kNone) CheckSamplesOfAnyLength(check);
  if (check.Usable({"model.num_layers"})) {
    const absl::Status pattern =
        ParseLayerPattern(model.moe_layer_freq(), model.num_layers()).status();
    if (!pattern.ok()) check.Error("model.moe_layer_freq", pattern.message());
  }
  CheckRouter(check);
  CheckExpertLayout(check);
}

}  // namespace megatron
