#include "megatron/layers/moe/token_dispatcher.h"

#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/layers/moe/expert_part.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/moe/grouped_linear.h"
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

// A part has the rows of its experts, and parts follow each other.
void ExpectThatPartsAreAllGroups(const TokenDispatcher::Plan& plan, int64_t local_experts) {
  std::vector<ops::RowGroup> groups;
  int64_t expert = 0, row = 0;
  for (const ExpertPart& part : plan.parts) {
    EXPECT_EQ(part.experts.begin, expert);
    EXPECT_EQ(part.begin, row);
    expert = part.experts.end;
    row = part.end;
    int64_t end = 0;
    for (const ops::RowGroup& group : part.groups) {
      EXPECT_TRUE(part.experts.begin <= group.expert && group.expert < part.experts.end);
      EXPECT_EQ(group.begin, end);
      end = group.end;
      groups.push_back({group.expert, part.begin + group.begin, part.begin + group.end});
    }
    EXPECT_EQ(end, part.end - part.begin);
  }
  EXPECT_EQ(expert, local_experts);
  EXPECT_EQ(row, plan.num_received());
  ASSERT_EQ(groups.size(), plan.groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    EXPECT_EQ(groups[i].expert, plan.groups[i].expert);
    EXPECT_EQ(groups[i].begin, plan.groups[i].begin);
    EXPECT_EQ(groups[i].end, plan.groups[i].end);
  }
}

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
  const std::vector<AsyncCall> calls = dispatcher.ToExperts(ctx, plan, sent, ctx.saved, &rows);
  for (const AsyncCall& call : calls) call.Wait();
  ASSERT_EQ(rows.dim(0), plan.num_received());
  const bool in_parts = options.dispatch_in_parts && world.size() > 1;
  ASSERT_EQ(plan.parts.size(), in_parts ? 2u : 1u);
  ASSERT_EQ(calls.size(), plan.parts.size());
  ExpectThatPartsAreAllGroups(plan, local_experts);
  int64_t end = 0;
  for (const ops::RowGroup& group : plan.groups) {
    EXPECT_EQ(group.begin, end);
    end = group.end;
    const int64_t expert = groups.expert.rank() * local_experts + group.expert;
    for (int64_t i = group.begin * kHidden; i < group.end * kHidden; ++i)
      rows.data<float>()[i] += static_cast<float>(100000 * expert);
  }
  EXPECT_EQ(end, rows.dim(0));
  // Rows come back where they were sent from.
  const Tensor back = dispatcher.alone() ? rows : sent.tensor();
  for (size_t part = 0; part < plan.parts.size(); ++part)
    dispatcher.FromExperts(ctx, plan, part, rows, back).Wait();
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
  for (const bool in_parts : {false, true}) {
    MoeOptions options = Options();
    options.dispatch_in_parts = in_parts;
    SendThereAndBack(options, ProcessGroup(), /*tensor_parallel=*/false);
    for (const bool tensor_parallel : {false, true}) {
      ASSERT_TRUE(RunRanks(2, [&](int rank, const ProcessGroup& world) {
                    SendThereAndBack(options, world, tensor_parallel);
                    return world.status();
                  }).ok());
    }
  }
}

TEST(TokenDispatcherTest, RowsTravelInOnePartToSingleExpertsAndBesideASharedOne) {
  const auto parts = [](const MoeOptions& options, const ProcessGroup& world) {
    ExpertGroups groups;
    groups.model = groups.expert = world;
    LayerHarness harness({kTokens});
    TokenDispatcher::Plan plan;
    TokenDispatcher(options, groups)
        .MakePlan(harness.context(), ChosenExperts(world.rank()).tensor(), &plan);
    return plan.parts.size();
  };
  for (const int ranks : {1, 2, 4}) {
    ASSERT_TRUE(RunRanks(ranks, [&](int rank, const ProcessGroup& world) {
                  MoeOptions options = Options();
                  options.dispatch_in_parts = true;
                  EXPECT_EQ(parts(options, world), ranks == 2 ? 2u : 1u);
                  options.shared_ffn_hidden_size = 8;
                  EXPECT_EQ(parts(options, world), 1u);
                  return world.status();
                }).ok());
  }
}

TEST(TokenDispatcherTest, WithPaddingEveryExpertGetsTheSameNumberOfRows) {
  MoeOptions options = Options();
  options.capacity_factor = 2;  // all tokens of a sample: 2 * 2 * 6 / 4
  options.pad_to_capacity = true;
  MoeOptions in_parts = options;
  in_parts.dispatch_in_parts = true;
  ASSERT_TRUE(RunRanks(2, [&](int rank, const ProcessGroup& world) {
                SendThereAndBack(options, world, /*tensor_parallel=*/false);
                SendThereAndBack(in_parts, world, /*tensor_parallel=*/false);
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
