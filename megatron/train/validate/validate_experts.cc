#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "megatron/train/config/layer_pattern.h"
#include "megatron/train/config/router_balance.h"
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
  constexpr char kScoreTopk[] = "model.moe_router_group_score_topk";
  // Where it is not written, it is their quotient.
  if (!check.IsWritten(kScoreTopk))
    check.MustDivide(kGroupTopk, kTopk, model.moe_router_group_topk(), model.moe_router_topk());
  if (!check.Usable({kGroups, kGroupTopk, kExperts, kTopk})) return;
  if (check.IsWritten(kScoreTopk) && check.Usable({kScoreTopk}) &&
      model.moe_router_group_score_topk() > model.num_experts() / model.moe_router_num_groups()) {
    check.Error(kScoreTopk,
                absl::StrCat("is more than the experts of a group of ", check.Named(kGroups)));
  }
  if (model.moe_router_group_topk() >= model.moe_router_num_groups()) {
    check.Error(kGroupTopk, absl::StrCat("must be less than ", check.Named(kGroups)));
  } else if (model.num_experts() / model.moe_router_num_groups() * model.moe_router_group_topk() <
             model.moe_router_topk()) {
    check.Error(kGroupTopk, absl::StrCat("of ", check.Named(kGroups), " have fewer experts than ",
                                         check.Named(kTopk)));
  }
}

// Several losses have as many weights, each above 0, and nothing else is listed beside one.
void CheckBalance(ConfigChecker& check) {
  constexpr char kTypes[] = "model.moe_router_load_balancing_type";
  constexpr char kWeights[] = "model.moe_aux_loss_coeff";
  const config::ModelConfig& model = check.resolved().model();
  if (!check.Usable({kTypes, kWeights})) return;
  const std::vector<RouterBalance> balances = RouterBalances(model);
  const int weights = model.moe_aux_loss_coeff_size();
  if (weights > static_cast<int>(balances.size()) ||
      (balances.size() > 1 && weights != static_cast<int>(balances.size()))) {
    check.Error(kWeights, absl::StrCat("has ", weights, " weights for ", balances.size(),
                                       balances.size() == 1 ? " loss" : " losses"));
  }
  std::set<int> types;
  for (const RouterBalance& balance : balances) {
    const bool is_loss = balance.type == config::RouterLoadBalancing::seq_aux_loss ||
                         balance.type == config::RouterLoadBalancing::aux_loss ||
                         balance.type == config::RouterLoadBalancing::global_aux_loss;
    const std::string& name = config::RouterLoadBalancing::Type_Name(balance.type);
    if (!types.insert(balance.type).second)
      check.Error(kTypes, absl::StrCat("names ", name, " twice"));
    if (balances.size() == 1) continue;
    if (!is_loss) check.Error(kTypes, absl::StrCat("names ", name, ", which stands alone"));
    if (is_loss && balance.coeff == 0) {
      check.Error(kWeights, absl::StrCat("must be above 0 for ", name, "; leave the loss out"));
    }
  }
}

// Quantile balancing finds the biases of scores that lie between 0 and 1, from one choice more than
// is taken.
void CheckQuantiles(ConfigChecker& check, bool sigmoid) {
  constexpr char kQuantiles[] = "model.moe_router_load_balancing_type = quantile_balancing";
  const config::ModelConfig& model = check.resolved().model();
  if (!HasRouterBalance(model, config::RouterLoadBalancing::quantile_balancing)) return;
  const auto refuse = [&](bool broken, const char* path, absl::string_view because) {
    if (broken) check.Error(path, absl::StrCat(because, " (", kQuantiles, ")"));
  };
  refuse(!sigmoid, "model.moe_router_score_function", "must be sigmoid");
  refuse(model.moe_router_enable_expert_bias(), "model.moe_router_enable_expert_bias",
         "would update biases that follow from quantiles");
  refuse(check.IsWritten("model.moe_router_num_groups"), "model.moe_router_num_groups",
         "limits choices in a way that quantiles know nothing of");
  refuse(check.IsWritten("model.moe_expert_capacity_factor"), "model.moe_expert_capacity_factor",
         "drops choices, of which quantiles know nothing");
  refuse(model.moe_router_topk() >= model.num_experts() || model.moe_router_topk() >= 32, kTopk,
         "must be less than model.num_experts and 32");
}

void CheckRouter(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  CheckBalance(check);
  check.MustNotExceed(kTopk, kExperts, static_cast<double>(model.moe_router_topk()),
                      static_cast<double>(model.num_experts()));
  if (HasRouterBalance(model, config::RouterLoadBalancing::sinkhorn)) return;
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
  CheckQuantiles(check, sigmoid);
  CheckGroups(check);
}

// Experts are parts of a dense model's MLPs.
void CheckUpcycling(ConfigChecker& check) {
  constexpr char kUpcycling[] = "model.moe_use_upcycling";
  constexpr char kFfn[] = "model.ffn_hidden_size", kExpertFfn[] = "model.moe_ffn_hidden_size";
  const config::PretrainConfig& config = check.resolved();
  const config::ModelConfig& model = config.model();
  if (!model.moe_use_upcycling()) return;
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken) check.Error(kUpcycling, absl::StrCat("cannot be used with ", path, ": ", because));
  };
  refuse(check.IsWritten("model.moe_shared_expert_intermediate_size"),
         "model.moe_shared_expert_intermediate_size",
         "the dense model has no weights that a shared expert could begin with");
  refuse(model.has_lora(), "model.lora", "what is trained are the experts");
  refuse(config.checkpoint().use_checkpoint_args(), "checkpoint.use_checkpoint_args",
         "the checkpoint is of a model without experts");
  refuse(config.checkpoint().load() == config.checkpoint().save(), "checkpoint.load",
         "it is where the run saves; load the dense model from elsewhere");
  if (!check.Usable({kFfn, kExpertFfn, kExperts})) return;
  check.MustDivide(kExpertFfn, kFfn, model.moe_ffn_hidden_size(), model.ffn_hidden_size());
  if (model.ffn_hidden_size() % model.moe_ffn_hidden_size() != 0) return;
  const int64_t parts = model.ffn_hidden_size() / model.moe_ffn_hidden_size();
  if (model.num_experts() % parts != 0) {
    check.Error(kExperts,
                absl::StrCat("must be a multiple of ", parts, ", which is ", check.Named(kFfn),
                             " / ", check.Named(kExpertFfn), ": with ", kUpcycling,
                             " an MLP becomes that many experts, or a multiple"));
  }
}

void CheckSamplesOfAnyLength(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  const std::string because =
      absl::StrCat("does not work together with ", check.Named("model.model_type"),
                   ", whose samples have any length");
  if (check.IsWritten("model.moe_expert_capacity_factor"))
    check.Error("model.moe_expert_capacity_factor", because);
  for (const RouterBalance& balance : RouterBalances(model)) {
    if (balance.type == config::RouterLoadBalancing::seq_aux_loss ||
        balance.type == config::RouterLoadBalancing::none)
      continue;
    check.Error("model.moe_router_load_balancing_type", because);
    break;
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
  if (ranks > 1 && check.Usable({kExpertRanks, kExperts}) && model.num_experts() == ranks) {
    check.HaveNoEffect({"parallel.moe_dispatch_in_parts"},
                       absl::StrCat("with ", check.Named(kExperts), " and ",
                                    check.Named(kExpertRanks), ": a rank has one expert"));
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
  if (!check.IsWritten(kExperts)) {
    if (absl::c_linear_search(check.resolved().recompute().recompute_modules(),
                              config::RecomputeModule::moe)) {
      check.Error("recompute.recompute_modules",
                  absl::StrCat("names moe, which has no effect without ", kExperts));
    }
    return;
  }
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
  CheckUpcycling(check);
  CheckExpertLayout(check);
}

}  // namespace megatron
