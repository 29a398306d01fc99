// Layers with deduplicated dispatch beside the same layers without it, on the same ranks.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/counted_communicator.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/layers/layer_harness.h"
#include "megatron/layers/moe/expert_groups.h"
#include "megatron/layers/moe/moe_layer.h"

namespace megatron {
namespace {

constexpr int64_t kHidden = 8, kTokens = 7;
// Sums of fp32 in another order.
constexpr double kTolerance = 2e-5;

struct Case {
  int hosts, ranks_per_host, copies, experts, topk;
  std::string ToString() const {
    return absl::StrCat(hosts, " hosts of ", ranks_per_host, " ranks, ", copies,
                        " parts of an expert, ", experts, " experts, top ", topk);
  }
  int ranks() const { return hosts * ranks_per_host; }
};

TransformerOptions OptionsOf(const Case& c) {
  TransformerOptions options;
  options.num_layers = 1;
  options.hidden_size = kHidden;
  options.ffn_hidden_size = 12;
  options.linear_bias = false;
  options.gated = true;
  options.moe.num_experts = c.experts;
  options.moe.ffn_hidden_size = 6;
  options.moe.router.topk = c.topk;
  options.moe.router.pre_softmax = true;
  options.moe.balance = BalanceUnit::kNone;
  return options;
}

absl::StatusOr<ProcessGroup> Split(const ProcessGroup& world,
                                   const std::vector<std::vector<int>>& partition,
                                   const std::string& name) {
  MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> part,
                            world.communicator()->Split(partition, name));
  return ProcessGroup(std::move(part));
}

// Runs of `length` ranks, or the ranks in the same place of all runs.
std::vector<std::vector<int>> Runs(int ranks, int length, bool across) {
  std::vector<std::vector<int>> partition(across ? length : ranks / length);
  for (int rank = 0; rank < ranks; ++rank)
    partition[across ? rank % length : rank / length].push_back(rank);
  return partition;
}

absl::StatusOr<ExpertGroups> GroupsOf(const Case& c, const ProcessGroup& world, bool by_host) {
  ExpertGroups groups;
  groups.model = world;
  MEGATRON_ASSIGN_OR_RETURN(groups.tensor, Split(world, Runs(c.ranks(), c.copies, false), "etp"));
  MEGATRON_ASSIGN_OR_RETURN(groups.expert, Split(world, Runs(c.ranks(), c.copies, true), "ep"));
  if (!by_host) return groups;
  MEGATRON_ASSIGN_OR_RETURN(groups.host,
                            Split(world, Runs(c.ranks(), c.ranks_per_host, false), "host"));
  MEGATRON_ASSIGN_OR_RETURN(groups.across_hosts,
                            Split(world, Runs(c.ranks(), c.ranks_per_host, true), "across"));
  return groups;
}

struct Outcome {
  LayerHarness::Results results;
  std::vector<std::vector<int>> chosen;  // the experts of each token that kept their choices
  int64_t bytes_across = 0;
};

absl::StatusOr<Outcome> Run(const Case& c, const TransformerOptions& options,
                            const ProcessGroup& world, bool by_host) {
  BytesSent sent;
  const ProcessGroup counted(Counted(world.communicator(), &sent));
  MEGATRON_ASSIGN_OR_RETURN(const ExpertGroups groups, GroupsOf(c, counted, by_host));
  LayerHarness harness({kTokens});
  MoeLayer layer(options, "mlp", /*layer=*/0, ProcessGroup(), groups);
  RouterState state(options.moe, {layer.router_name()}, {}, nullptr);
  layer.set_state(state.layer(0));
  MoeLayer::Saved saved;
  Outcome outcome;
  LayerCalls calls;
  calls.forward = [&](const LayerContext& ctx, const Tensor& x, const Tensor& y) {
    saved = {};
    layer.Forward(ctx, x, y, &saved);
    const Tensor expert = saved.router.expert_NK;
    outcome.chosen.assign(expert.dim(0), {});
    for (int64_t i = 0; i < expert.numel(); ++i) {
      if (const int32_t e = expert.data<int32_t>()[i]; e >= 0)
        outcome.chosen[i / expert.dim(1)].push_back(e);
    }
  };
  calls.backward = [&](const LayerContext& ctx, const Tensor& dy, const Tensor& dx) {
    layer.Backward(ctx, dy, dx, &saved);
  };
  calls.backward_weight = [&](const LayerContext& ctx) { layer.BackwardWeight(ctx, &saved); };
  calls.parameters = ParametersOf(&layer);
  harness.Bind(calls.parameters);
  sent.Reset();
  const uint32_t seed = 10 + 2 * world.rank();
  outcome.results =
      harness.Run(calls, ops::HostTensor::Normal({kTokens, kHidden}, DType::kFloat32, seed),
                  ops::HostTensor::Normal({kTokens, kHidden}, DType::kFloat32, seed + 1));
  outcome.bytes_across = sent.Of("across", Collective::kAllToAllV);
  return outcome;
}

void ExpectClose(const std::vector<double>& got, const std::vector<double>& want, bool same_bits) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], same_bits ? 0 : kTolerance * (1 + std::abs(want[i]))) << i;
}

// Compares the layer with and without deduplicated dispatch, and counts what crosses.
void ExpectThatOfFlatDispatch(const Case& c, const TransformerOptions& options) {
  SCOPED_TRACE(c.ToString());
  const absl::Status status =
      RunRanks(c.ranks(), [&](int rank, const ProcessGroup& world) -> absl::Status {
        SCOPED_TRACE(absl::StrCat("rank ", rank));
        MEGATRON_ASSIGN_OR_RETURN(const Outcome flat, Run(c, options, world, false));
        MEGATRON_ASSIGN_OR_RETURN(const Outcome by_host, Run(c, options, world, true));
        EXPECT_EQ(by_host.chosen, flat.chosen);
        int64_t rows = 0;  // tokens times their hosts but for this one
        const int64_t of_host = c.experts / c.hosts, here = rank / c.ranks_per_host;
        for (const std::vector<int>& experts : flat.chosen) {
          std::set<int64_t> hosts;
          for (int expert : experts) hosts.insert(expert / of_host);
          rows += static_cast<int64_t>(hosts.size() - hosts.count(here));
        }
        // Out go a row, its choices and a row of gradients. The rows that come back go out from the
        // ranks of other hosts: on all ranks together, as many of them.
        ops::HostTensor returned = ops::HostTensor::Of({1}, DType::kFloat32, {double(rows)}),
                        bytes = ops::HostTensor::Of({1}, DType::kFloat32,
                                                    {double(by_host.bytes_across)});
        world.AllReduce(returned, ReduceOp::kSum, Stream::Inline());
        world.AllReduce(bytes, ReduceOp::kSum, Stream::Inline());
        const int64_t of_row = 4 * (4 * kHidden + 3 * c.topk);
        EXPECT_EQ(bytes.Get(0), returned.Get(0) * of_row);
        const bool same_bits = c.topk == 1;  // there is one summand
        ExpectClose(by_host.results.y, flat.results.y, same_bits);
        ExpectClose(by_host.results.dx, flat.results.dx, same_bits);
        EXPECT_EQ(by_host.results.gradients.size(), flat.results.gradients.size());
        for (size_t i = 0; i < flat.results.gradients.size(); ++i)
          ExpectClose(by_host.results.gradients[i], flat.results.gradients[i], false);
        return world.status();
      });
  EXPECT_EQ(status, absl::OkStatus());
}

TEST(HostDispatchTest, ResultsAreThoseOfFlatDispatchAndEachRowCrossesOnce) {
  for (int hosts : {2, 3, 4}) {
    for (int ranks_per_host : {1, 2, 3, 4}) {
      if (hosts * ranks_per_host > 8) continue;
      for (int copies : {1, 2}) {
        if (ranks_per_host % copies != 0) continue;
        for (int per_rank : {1, 2}) {
          const int experts = hosts * ranks_per_host / copies * per_rank;
          for (int topk : {1, 2, 3, experts}) {
            if (topk > experts) continue;
            const Case c = {hosts, ranks_per_host, copies, experts, topk};
            ExpectThatOfFlatDispatch(c, OptionsOf(c));
          }
        }
      }
    }
  }
}

TEST(HostDispatchTest, DroppedChoicesAndASharedExpertChangeNothing) {
  const Case c = {2, 2, 1, 8, 3};
  TransformerOptions options = OptionsOf(c);
  options.moe.capacity_factor = 0.5;
  options.moe.shared_ffn_hidden_size = 10;
  ExpectThatOfFlatDispatch(c, options);
}

// The groups of experts are the hosts, and a token may choose in one of them alone: most pairs of
// ranks have nothing to send to each other, and a host may have no rows at all.
TEST(HostDispatchTest, TokensWhoseExpertsAreOnOneHostCrossOnceOrNot) {
  const Case c = {4, 2, 1, 16, 2};
  TransformerOptions options = OptionsOf(c);
  options.moe.router.score = ops::RouterScore::kSigmoid;
  options.moe.router.num_groups = 4;
  options.moe.router.group_topk = 1;
  ExpectThatOfFlatDispatch(c, options);
}

}  // namespace
}  // namespace megatron
