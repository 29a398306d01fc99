#include "megatron/layers/moe/router_state.h"

#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/layers/moe/capacity.h"

namespace megatron {
namespace {

TEST(RouterStateTest, BiasesFallForExpertsChosenMoreThanTheAverage) {
  MoeOptions options;
  options.num_experts = 4;
  options.expert_bias = true;
  options.expert_bias_update_rate = 0.5f;
  MemoryLedger ledger;
  ThreadPool pool(1);
  RouterState state(options, {"a.router", "b.router"}, Device(), &ledger);
  const std::vector<int64_t> chosen = {9, 1, 5, 5};
  for (size_t e = 0; e < chosen.size(); ++e) state.layer(1).chosen_E.data<int64_t>()[e] = chosen[e];
  state.UpdateBiases({}, Stream::Cpu(&pool));
  const auto tensors = state.Tensors();
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[1].name, "b.router.expert_bias");
  const float* bias = tensors[1].tensor.data<float>();
  EXPECT_EQ(std::vector<float>(bias, bias + 4), (std::vector<float>{-0.5f, 0.5f, 0, 0}));
  EXPECT_EQ(tensors[0].tensor.data<float>()[0], 0);
}

TEST(CapacityTest, IsTheCeilingOfTheSharesOfASampleAndNeverMore) {
  MoeOptions options;
  options.num_experts = 8;
  options.router.topk = 2;
  options.capacity_factor = 1.25;
  EXPECT_EQ(ExpertCapacity(options, 16), 5);
  options.capacity_factor = 1;
  EXPECT_EQ(ExpertCapacity(options, 13), 4);
  options.capacity_factor = 100;
  EXPECT_EQ(ExpertCapacity(options, 13), 13);
}

}  // namespace
}  // namespace megatron
