#include "megatron/layers/moe/token_dispatcher.h"

#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/moe/permute.h"

namespace megatron {
namespace {

constexpr int kTokens = 6, kExperts = 4, kChoices = 2, kHidden = 3;

MoeOptions Options() {
  MoeOptions options;
  options.num_experts = kExperts;
  options.router.topk = kChoices;
  return options;
}

// Token t of a rank goes to expert (t + rank) % 3, and to expert 3 unless it is the last token,
// whose second choice is dropped.
int ChosenExpert(int rank, int token, int choice) {
  if (choice == 0) return (token + rank) % 3;
  return token == kTokens - 1 ? -1 : 3;
}

ops::HostTensor ChosenExperts(int rank) {
  ops::HostTensor expert({kTokens, kChoices}, DType::kInt32);
  for (int t = 0; t < kTokens; ++t) {
    for (int k = 0; k < kChoices; ++k)
      expert.tensor().data<int32_t>()[t * kChoices + k] = ChosenExpert(rank, t, k);
  }
  return expert;
}

// A number that tells rank, token and column.
double Mark(int rank, int token, int column) { return 1000 * rank + 10 * token + column; }

// Sends each token's row to its experts, which add 100,000 times their number, and expects the rows
// back at their places.
void SendThereAndBack(const MoeOptions& options, const ProcessGroup& world, bool tensor_parallel) {
  ExpertGroups groups;
  groups.model = world;
  (tensor_parallel ? groups.tensor : groups.expert) = world;
  const TokenDispatcher dispatcher(options, groups);
  LayerHarness harness({kTokens});
  LayerContext& ctx = harness.context();
  const int rank = world.rank();
  const int copies = groups.tensor.size();
  const int64_t local_experts = kExperts / groups.expert.size();

  TokenDispatcher::Plan plan;
  dispatcher.MakePlan(ctx, ChosenExperts(rank).tensor(), &plan);
  ops::HostTensor x({kTokens, kHidden}, DType::kFloat32);
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < kHidden; ++h) x.Set(t * kHidden + h, Mark(rank, t, h));
  }
  const ops::HostTensor sent({plan.num_sent(), kHidden}, DType::kFloat32);
  ops::Zero(ctx.stream, sent);
  ops::Permute(ctx.stream, x, plan.place_NKC, sent);
  Tensor rows;
  dispatcher.ToExperts(ctx, plan, sent, ctx.saved, &rows).Wait();
  ASSERT_EQ(rows.dim(0), plan.num_received());
  int64_t end = 0;
  for (const ops::RowGroup& group : plan.groups) {
    EXPECT_EQ(group.begin, end);
    end = group.end;
    const int64_t expert = groups.expert.rank() * local_experts + group.expert;
    for (int64_t i = group.begin * kHidden; i < group.end * kHidden; ++i)
      rows.data<float>()[i] += static_cast<float>(100000 * expert);
  }
  EXPECT_EQ(end, rows.dim(0));
  Tensor back;
  dispatcher.FromExperts(ctx, plan, rows, ctx.saved, &back).Wait();
  ASSERT_EQ(back.dim(0), plan.num_sent());
  for (int t = 0; t < kTokens; ++t) {
    for (int k = 0; k < kChoices; ++k) {
      for (int copy = 0; copy < copies; ++copy) {
        const int32_t place = plan.place_NKC.data<int32_t>()[(t * kChoices + k) * copies + copy];
        const int expert = ChosenExpert(rank, t, k);
        ASSERT_EQ(place < 0, expert < 0);
        for (int h = 0; place >= 0 && h < kHidden; ++h)
          EXPECT_EQ(back.data<float>()[place * kHidden + h], Mark(rank, t, h) + 100000 * expert);
      }
    }
  }
}

TEST(TokenDispatcherTest, RowsGoToTheirExpertsAndBack) {
  SendThereAndBack(Options(), ProcessGroup(), /*tensor_parallel=*/false);
  for (const bool tensor_parallel : {false, true}) {
    ASSERT_TRUE(RunRanks(2, [&](int rank, const ProcessGroup& world) {
                  SendThereAndBack(Options(), world, tensor_parallel);
                  return world.status();
                }).ok());
  }
}

TEST(TokenDispatcherTest, WithPaddingEveryExpertGetsTheSameNumberOfRows) {
  MoeOptions options = Options();
  options.capacity_factor = 2;  // all tokens of a sample: 2 * 2 * 6 / 4
  options.pad_to_capacity = true;
  ASSERT_TRUE(RunRanks(2, [&](int rank, const ProcessGroup& world) {
                SendThereAndBack(options, world, /*tensor_parallel=*/false);
                ExpertGroups groups;
                groups.model = groups.expert = world;
                LayerHarness harness({kTokens});
                TokenDispatcher::Plan plan;
                TokenDispatcher(options, groups)
                    .MakePlan(harness.context(), ChosenExperts(rank).tensor(), &plan);
                EXPECT_EQ(plan.groups.size(), 4u);  // two experts here, two senders
                for (const ops::RowGroup& group : plan.groups)
                  EXPECT_EQ(group.end - group.begin, kTokens);
                return world.status();
              }).ok());
}

}  // namespace
}  // namespace megatron
