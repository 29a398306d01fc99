#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/validate/validation_errors.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kGood[] =
    "model { num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32\n"
    "  num_experts: 8 disable_bias_linear: true }\n"
    "parallel { data_parallel_size: 4 }\n"
    "optimizer { lr: 1e-3 }\n"
    "train { micro_batch_size: 2 train_iters: 10 }\n"
    "data { mock_data: true }\n";

std::vector<std::string> ErrorsWith(const ConfigOverrides& overrides) {
  return ErrorsOf(kGood, overrides);
}

TEST(ValidateExpertsTest, AcceptsWhatWorks) {
  EXPECT_THAT(ErrorsWith({}), IsEmpty());
  EXPECT_THAT(ErrorsWith({"parallel.expert_model_parallel_size=4"}), IsEmpty());
  EXPECT_THAT(ErrorsWith({"model.post_norm=true"}), IsEmpty());
  EXPECT_THAT(ErrorsWith({"model.model_type=bert", "model.moe_aux_loss_coeff=0.1",
                          "model.moe_z_loss_coeff=0.1"}),
              IsEmpty());
  EXPECT_THAT(
      ErrorsWith({"parallel.expert_model_parallel_size=8", "parallel.context_parallel_size=2"}),
      IsEmpty());
  EXPECT_THAT(
      ErrorsWith({"model.moe_router_topk=1", "model.moe_router_pre_softmax=true",
                  "model.moe_expert_capacity_factor=1.5", "model.moe_token_drop_policy=position"}),
      IsEmpty());
  EXPECT_THAT(ErrorsWith({"model.moe_router_score_function=sigmoid",
                          "model.moe_router_enable_expert_bias=true", "model.moe_router_topk=4",
                          "model.moe_router_num_groups=4", "model.moe_router_group_topk=2"}),
              IsEmpty());
}

TEST(ValidateExpertsTest, DispatchMayBeDeduplicatedWhereExpertsAreOnSeveralHosts) {
  const ConfigOverrides wanted = {"parallel.moe_deduplicated_dispatch=true"};
  const auto errors = [&](ConfigOverrides more) {
    more.insert(more.end(), wanted.begin(), wanted.end());
    return ErrorsWith(more);
  };
  const std::string ranks_per_host = "parallel.hierarchical_collectives_ranks_per_host=";
  EXPECT_THAT(errors({"parallel.expert_model_parallel_size=4", ranks_per_host + "2"}), IsEmpty());
  // Each rank is a host, so no other collective has two levels.
  EXPECT_THAT(errors({"parallel.expert_model_parallel_size=2", ranks_per_host + "1"}), IsEmpty());
  EXPECT_THAT(errors({"parallel.expert_model_parallel_size=4"}),
              ElementsAre(HasSubstr("has no effect with "
                                    "parallel.hierarchical_collectives_ranks_per_host = 0")));
  EXPECT_THAT(errors({ranks_per_host + "2"}),
              ElementsAre(HasSubstr("has no effect with parallel.expert_model_parallel_size = 1")));
  EXPECT_THAT(errors({"parallel.expert_model_parallel_size=2", ranks_per_host + "2"}),
              ElementsAre(HasSubstr("group etp-ep-0 of ranks that share experts is on one host")));
  EXPECT_THAT(errors({"parallel.expert_model_parallel_size=4", ranks_per_host + "3"}),
              ElementsAre(HasSubstr("group etp-ep-0 has 3 of its 4 ranks on host 0")));
  EXPECT_THAT(errors({"parallel.expert_model_parallel_size=2",
                      "parallel.expert_tensor_parallel_size=2", ranks_per_host + "1"}),
              ElementsAre(HasSubstr("has the 2 parts of an expert on different hosts")));
  EXPECT_THAT(
      errors({"parallel.expert_model_parallel_size=4", ranks_per_host + "2",
              "model.moe_expert_capacity_factor=1", "model.moe_pad_expert_input_to_capacity=true"}),
      ElementsAre(HasSubstr("does not go with model.moe_pad_expert_input_to_capacity")));
}

TEST(ValidateExpertsTest, DispatchIsInPartsWhereRanksHaveSeveralExpertsAndNothingHidesTheWay) {
  const auto errors = [](ConfigOverrides more) {
    more.push_back("parallel.moe_dispatch_in_parts=true");
    return ErrorsWith(more);
  };
  EXPECT_THAT(errors({"parallel.expert_model_parallel_size=4"}), IsEmpty());
  EXPECT_THAT(errors({"parallel.expert_model_parallel_size=2", "model.moe_expert_capacity_factor=1",
                      "model.moe_pad_expert_input_to_capacity=true"}),
              IsEmpty());
  EXPECT_THAT(errors({}),
              ElementsAre(HasSubstr("has no effect with parallel.expert_model_parallel_size = 1")));
  EXPECT_THAT(errors({"parallel.expert_model_parallel_size=4", "model.num_experts=4"}),
              ElementsAre(HasSubstr("a rank has one expert")));
  EXPECT_THAT(
      errors({"parallel.expert_model_parallel_size=4",
              "model.moe_shared_expert_intermediate_size=64"}),
      ElementsAre(HasSubstr("has no effect with model.moe_shared_expert_intermediate_size = 64")));
  EXPECT_THAT(errors({"parallel.expert_model_parallel_size=4",
                      "parallel.hierarchical_collectives_ranks_per_host=2",
                      "parallel.moe_deduplicated_dispatch=true"}),
              ElementsAre(HasSubstr("has no effect with parallel.moe_deduplicated_dispatch")));
}

// Each rank's documents are its own, unless its experts' rows come from it alone.
TEST(ValidateExpertsTest, ExpertsWithPaddedRowsGoWithCudaGraphs) {
  const ConfigOverrides padded = {
      "system.device=cuda", "parallel.distributed_backend=nccl", "system.cuda_graph_impl=local",
      "model.moe_expert_capacity_factor=1", "model.moe_pad_expert_input_to_capacity=true"};
  const std::vector<ConfigOverrides> with = {
      {},
      {"parallel.data_parallel_size=2", "parallel.expert_model_parallel_size=2"},
      {"parallel.data_parallel_size=2", "data.reset_attention_mask=true"},
      {"parallel.data_parallel_size=1", "parallel.context_parallel_size=2",
       "parallel.expert_model_parallel_size=2", "data.reset_attention_mask=true"}};
  for (ConfigOverrides overrides : with) {
    overrides.insert(overrides.end(), padded.begin(), padded.end());
    EXPECT_THAT(ErrorsWith(overrides), IsEmpty());
  }
}

TEST(ValidateExpertsTest, BalanceLossesMayBeSeveral) {
  EXPECT_THAT(ErrorsWith({"model.moe_router_load_balancing_type=[seq_aux_loss, global_aux_loss]",
                          "model.moe_aux_loss_coeff=[0.01, 0.001]"}),
              IsEmpty());
}

TEST(ValidateExpertsTest, QuantilesFindTheBiasesOfSigmoids) {
  const auto errors = [](ConfigOverrides more) {
    more.push_back("model.moe_router_load_balancing_type=quantile_balancing");
    return ErrorsWith(more);
  };
  const std::string sigmoid = "model.moe_router_score_function=sigmoid";
  EXPECT_THAT(errors({sigmoid, "model.moe_router_qb_num_bins=200"}), IsEmpty());
  EXPECT_THAT(errors({}), ElementsAre(HasSubstr("must be sigmoid")));
  EXPECT_THAT(errors({sigmoid, "model.moe_router_enable_expert_bias=true"}),
              ElementsAre(HasSubstr("would update biases that follow from quantiles")));
  EXPECT_THAT(errors({sigmoid, "model.moe_router_topk=8"}),
              ElementsAre(HasSubstr("must be less than model.num_experts")));
  EXPECT_THAT(errors({sigmoid, "model.moe_expert_capacity_factor=2"}),
              ElementsAre(HasSubstr("drops choices")));
  EXPECT_THAT(ErrorsWith({"model.moe_router_qb_num_bins=200"}),
              ElementsAre(HasSubstr("no effect without model.moe_router_load_balancing_type")));
}

TEST(ValidateExpertsTest, ADenseModelBecomesExpertsOfWholeParts) {
  const auto errors = [](const ConfigOverrides& more) {
    ConfigOverrides all = {"model.moe_use_upcycling=true", "checkpoint.load=a",
                           "model.ffn_hidden_size=128", "model.moe_ffn_hidden_size=32"};
    all.insert(all.end(), more.begin(), more.end());
    return ErrorsWith(all);
  };
  EXPECT_THAT(errors({}), IsEmpty());
  EXPECT_THAT(errors({"model.num_experts=6", "parallel.data_parallel_size=2"}),
              ElementsAre(HasSubstr("must be a multiple of 4")));
  EXPECT_THAT(errors({"model.ffn_hidden_size=80"}),
              ElementsAre(HasSubstr("model.moe_ffn_hidden_size")));
  EXPECT_THAT(errors({"checkpoint.save=a"}), ElementsAre(HasSubstr("it is where the run saves")));
  EXPECT_THAT(errors({"model.moe_shared_expert_intermediate_size=32"}),
              ElementsAre(HasSubstr("model.moe_shared_expert_intermediate_size")));
  EXPECT_THAT(errors({"checkpoint.use_checkpoint_args=true"}),
              ElementsAre(HasSubstr("the checkpoint is of a model without experts")));
}

TEST(ValidateExpertsTest, SinkhornMayChooseOneExpert) {
  EXPECT_THAT(ErrorsWith({"model.moe_router_load_balancing_type=sinkhorn",
                          "model.moe_router_topk=1", "model.moe_input_jitter_eps=0.01"}),
              IsEmpty());
}

TEST(ValidateExpertsTest, RefusesEachBrokenRuleByName) {
  const std::vector<std::pair<ConfigOverrides, std::string>> cases = {
      {{"model.disable_bias_linear=false", "model.moe_shared_expert_intermediate_size=8"},
       "a shared expert has no biases"},
      {{"model.moe_shared_expert_gate=true"},
       "has no effect without model.moe_shared_expert_intermediate_size"},
      {{"model.model_type=bert", "model.moe_expert_capacity_factor=1"},
       "model.moe_expert_capacity_factor = 1: does not work together with model.model_type"},
      {{"model.model_type=bert", "model.moe_router_load_balancing_type=sinkhorn"},
       "whose samples have any length"},
      {{"model.model_type=bert", "model.moe_router_load_balancing_type=aux_loss",
        "model.moe_aux_loss_coeff=0.1"},
       "whose samples have any length"},
      {{"model.moe_router_load_balancing_type=sinkhorn", "model.moe_aux_loss_coeff=0.1"},
       "has no effect with model.moe_router_load_balancing_type"},
      {{"model.moe_router_load_balancing_type=sinkhorn", "model.moe_router_score_function=sigmoid"},
       "has no effect with model.moe_router_load_balancing_type"},
      {{"model.moe_router_load_balancing_type=global_aux_loss"},
       "without model.moe_aux_loss_coeff"},
      {{"model.moe_pad_expert_input_to_capacity=true"}, "without model.moe_expert_capacity_factor"},
      {{"model.moe_input_jitter_eps=1"}, "model.moe_input_jitter_eps"},
      {{"model.moe_router_topk=9"}, "model.moe_router_topk"},
      {{"model.moe_router_topk=1"}, "makes a softmax over one expert"},
      {{"model.moe_router_enable_expert_bias=true"}, "moe_router_score_function: sigmoid"},
      {{"model.moe_router_bias_update_rate=0.5"},
       "with model.moe_router_enable_expert_bias = false (default)"},
      {{"model.moe_router_num_groups=4"}, "needs model.moe_router_group_topk"},
      {{"model.moe_router_group_topk=2"}, "without model.moe_router_num_groups"},
      {{"model.moe_router_group_score_topk=2"}, "without model.moe_router_num_groups"},
      {{"model.moe_router_num_groups=4", "model.moe_router_group_topk=2", "model.moe_router_topk=4",
        "model.moe_router_group_score_topk=3"},
       "is more than the experts of a group"},
      {{"model.moe_router_num_groups=4", "model.moe_router_group_topk=4",
        "model.moe_router_topk=4"},
       "must be less than model.moe_router_num_groups"},
      {{"model.moe_router_num_groups=8", "model.moe_router_group_topk=2",
        "model.moe_router_topk=4"},
       "have fewer experts"},
      {{"model.moe_router_load_balancing_type=aux_loss"}, "without model.moe_aux_loss_coeff"},
      {{"model.moe_router_load_balancing_type=none", "model.moe_aux_loss_coeff=0.1"},
       "model.moe_aux_loss_coeff"},
      {{"model.moe_router_load_balancing_type=[seq_aux_loss, aux_loss]",
        "model.moe_aux_loss_coeff=0.1"},
       "has 1 weights for 2 losses"},
      {{"model.moe_router_load_balancing_type=aux_loss", "model.moe_aux_loss_coeff=[0.1, 0.2]"},
       "has 2 weights for 1 loss"},
      {{"model.moe_router_load_balancing_type=[aux_loss, aux_loss]",
        "model.moe_aux_loss_coeff=[0.1, 0.2]"},
       "names aux_loss twice"},
      {{"model.moe_router_load_balancing_type=[seq_aux_loss, aux_loss]",
        "model.moe_aux_loss_coeff=[0.1, 0]"},
       "must be above 0 for aux_loss"},
      {{"model.moe_aux_loss_coeff=[-1]"}, "holds -1; each is a number from 0 to 1000"},
      {{"recompute.recompute_granularity=selective", "recompute.recompute_modules=[moe]",
        "model.num_experts=", "model.moe_router_topk="},
       "names moe, which has no effect without model.num_experts"},
      {{"model.moe_token_drop_policy=position"}, "without model.moe_expert_capacity_factor"},
      {{"model.moe_layer_freq=\"[1]*3\""}, "fewer than 4 layers"},
      {{"parallel.expert_model_parallel_size=3"}, "model.num_experts"},
      {{"parallel.expert_model_parallel_size=2", "parallel.data_parallel_size=2",
        "parallel.pipeline_model_parallel_size=2", "parallel.rank_order=tp-cp-ep-pp-dp"},
       "tp-cp-ep-pp-dp gives rank 0 two pipelines: ranks 0, "
       "1 in the dense grid dp2 x pp2, and ranks 0, 2 in the expert grid ep2 x pp2"},
      {{"parallel.expert_model_parallel_size=8"}, "experts are shared out over ranks of one"},
      {{"parallel.expert_tensor_parallel_size=3"}, "must be divisible"},
  };
  ExpectEachIsRefused(kGood, cases);
  EXPECT_THAT(ErrorsWith({"model.num_experts=", "model.moe_router_topk=4"}),
              ElementsAre(HasSubstr("without model.num_experts")));
}

}  // namespace
}  // namespace megatron
