// Compares the planner's traffic (plan/step_traffic.h) of models with experts with the bytes that
// the trainer's communicators count.

#include <utility>

#include "gtest/gtest.h"
#include "megatron/train/layouts/counted_traffic_harness.h"

namespace megatron::counted_traffic {
namespace {

// Rows are padded to the experts' capacity, which is what they are if the router balances.
TEST(CountedExpertTrafficTest, BalancedExpertsSendWhatIsPlanned) {
  TrainerOptions run = LlamaRun();
  MoeOptions& moe = run.model.transformer.moe;
  moe.num_experts = 4;
  moe.ffn_hidden_size = 128;
  moe.capacity_factor = 1;
  moe.pad_to_capacity = true;
  PlanModel model = LlamaModel();
  model.set_experts(4);
  model.set_experts_per_token(double(moe.router.topk));
  model.set_expert_ffn(128);
  Layout layout;
  layout.data = layout.expert = 2;
  const Sent sent = SentOn(run, model, layout, kLayers);
  EXPECT_NEAR(sent.planned.at("etp-ep"), sent.counted.at("etp-ep"),
              0.01 * sent.counted.at("etp-ep"));
  EXPECT_NEAR(sent.planned.at("dp-cp"), sent.counted.at("dp-cp"), 0.01 * sent.counted.at("dp-cp"));
}

// Experts gather rows themselves, whose number depends on the router; the others gather and sum up
// activations.
TEST(CountedExpertTrafficTest, TensorParallelRanksOfAMixtureSendWhatIsPlanned) {
  TrainerOptions run = LlamaRun();
  MoeOptions& moe = run.model.transformer.moe;
  moe.num_experts = 4;
  moe.ffn_hidden_size = 128;
  PlanModel model = LlamaModel();
  model.set_experts(4);
  model.set_experts_per_token(double(moe.router.topk));
  model.set_expert_ffn(128);
  for (const int shared : {0, 128}) {
    moe.shared_ffn_hidden_size = shared;
    model.set_shared_ffn(shared);
    for (const bool sequence_parallel : {false, true}) {
      Layout layout;
      layout.tensor = 2;
      layout.sequence_parallel = sequence_parallel;
      SCOPED_TRACE(testing::Message() << ToString(layout) << ", shared " << shared);
      const Sent sent = SentOn(run, model, layout, kLayers);
      EXPECT_GT(sent.counted.at("tp"), 0);
      EXPECT_NEAR(sent.planned.at("tp"), sent.counted.at("tp"), 0.01 * sent.counted.at("tp"));
    }
  }
}

// All else that tensor-parallel ranks send is the same for any number of experts, if no loss counts
// their tokens.
TEST(CountedExpertTrafficTest, TensorParallelRanksSumTheGradientsOfRouters) {
  TrainerOptions run = LlamaRun();
  MoeOptions& moe = run.model.transformer.moe;
  moe.ffn_hidden_size = 32;
  moe.balance = BalanceUnit::kNone;
  PlanModel model = LlamaModel();
  model.set_experts_per_token(double(moe.router.topk));
  model.set_expert_ffn(32);
  for (const bool sequence_parallel : {false, true}) {
    Layout layout;
    layout.tensor = 2;
    layout.sequence_parallel = sequence_parallel;
    SCOPED_TRACE(ToString(layout));
    const auto sent_with = [&](int experts) {
      moe.num_experts = experts;
      model.set_experts(experts);
      return SentOn(run, model, layout, kLayers);
    };
    constexpr int kFew = 4, kMany = 32;
    const Sent few = sent_with(kFew), many = sent_with(kMany);
    constexpr double kGradients = 4.0 * kHidden * (kMany - kFew) * kLayers;
    EXPECT_NEAR(many.counted.at("tp") - few.counted.at("tp"), kGradients, 0.01 * kGradients);
    EXPECT_NEAR(many.planned.at("tp") - few.planned.at("tp"), kGradients, 0.01 * kGradients);
  }
}

// Each token goes to all experts, so that each host gets one row of it.
TEST(CountedExpertTrafficTest, DeduplicatedDispatchSendsWhatIsPlannedWithinHostsAndBetweenThem) {
  TrainerOptions run = LlamaRun();
  MoeOptions& moe = run.model.transformer.moe;
  moe.num_experts = moe.router.topk = 4;
  moe.ffn_hidden_size = 128;
  PlanModel model = LlamaModel();
  model.set_experts(4);
  model.set_experts_per_token(4);
  model.set_expert_ffn(128);
  Layout whole, cut;
  whole.data = whole.expert = 4;
  cut.tensor = cut.expert_tensor = cut.data = cut.expert = 2;
  for (Layout layout : {whole, cut}) {
    layout.ranks_per_host = 2;
    layout.deduplicated_dispatch = true;
    SCOPED_TRACE(ToString(layout));
    const Sent sent = SentOn(run, model, layout, kLayers);
    double within = 0, across = 0;
    for (const TrafficRow& row : sent.rows) {
      if (row.axis != TrafficAxis::kExpert) continue;
      (row.group.stride == 1 ? within : across) += SentBytes(row);
    }
    EXPECT_GT(across, 0);
    // Numbers of rows are left out.
    for (const auto& [group, planned] :
         {std::make_pair("etp-ep-host", within), std::make_pair("etp-ep-across-hosts", across)}) {
      const double counted = CountedBytes(*sent.all, group);
      EXPECT_NEAR(planned, counted, 0.01 * counted) << group;
    }
    EXPECT_EQ(double(sent.all->Of("etp-ep-across-hosts", Collective::kAllToAllV)), across);
    const double flat = CountedBytes(*sent.all, "etp-ep-0");
    EXPECT_LT(flat, 256);
  }
}

}  // namespace
}  // namespace megatron::counted_traffic
