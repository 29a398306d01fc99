#include "megatron/train/planning/layout_space.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

config::PretrainConfig Resolved(const std::vector<std::string>& overrides) {
  const auto found = FindConfig("gpt3_857m");
  EXPECT_TRUE(found.ok()) << found.status();
  config::PretrainConfig config = ParseConfig(found->text, found->source, overrides).config;
  config.mutable_parallel()->Clear();
  ResolveDefaults(&config);
  return config;
}

std::vector<LayoutAxes> Visited(const config::PretrainConfig& config, int64_t ranks, int64_t domain,
                                std::vector<double> host_fractions = {0}) {
  std::vector<LayoutAxes> layouts;
  LayoutSpace space(config, ranks, domain, /*ranks_of_host=*/domain, std::move(host_fractions));
  const absl::Status status = space.VisitAll([&](const LayoutAxes& axes) -> absl::StatusOr<bool> {
    layouts.push_back(axes);
    return true;
  });
  EXPECT_TRUE(status.ok()) << status;
  return layouts;
}

TEST(LayoutSpaceTest, HasEachLayoutOnceAndAllOnTheRanks) {
  const auto layouts = Visited(Resolved({}), 16, 8);
  std::set<std::string> names;
  for (const LayoutAxes& axes : layouts) {
    EXPECT_EQ(axes.ranks(), 16);
    names.insert(DescribeLayout(axes));
  }
  EXPECT_EQ(names.size(), layouts.size());
}

TEST(LayoutSpaceTest, AsManyRanksAsThereAreGroupsShareThemOut) {
  const std::string layers = "model.hybrid_layer_pattern=M-M-M-M-M-M-M-M-M-M-M-M-";
  const auto most = [&](const char* together) {
    int64_t ranks = 0;
    for (const LayoutAxes& axes : Visited(Resolved({layers, together}), 16, 8))
      ranks = std::max(ranks, axes.tensor * axes.context);
    return ranks;
  };
  EXPECT_EQ(most("model.mamba_norm_all_groups=false"), 8);
  EXPECT_EQ(most("model.mamba_norm_all_groups=true"), 8);
}

TEST(LayoutSpaceTest, HasEveryFormOfContextParallelism) {
  const auto config = Resolved({"model.seq_length=8192", "model.num_attention_heads=16"});
  std::set<std::pair<PlanContext, int64_t>> forms;
  for (const LayoutAxes& axes : Visited(config, 64, 8)) {
    if (axes.tensor == 2 && axes.context == 16)
      forms.insert({axes.context_form, axes.context_team});
    EXPECT_TRUE(axes.context > 1 || axes.context_form == PlanContext::kRing);
  }
  // 8 heads of a tensor-parallel rank can't be exchanged among 16, and no team leaves the domain.
  EXPECT_EQ(forms, (std::set<std::pair<PlanContext, int64_t>>{{PlanContext::kRing, 1},
                                                              {PlanContext::kGather, 1},
                                                              {PlanContext::kTeams, 2},
                                                              {PlanContext::kTeams, 4}}));
}

TEST(LayoutSpaceTest, PutsEachPartOfTheOptimizerOnTheHost) {
  const auto config = Resolved({});
  const auto without = Visited(config, 4, 8);
  const auto with = Visited(config, 4, 8, {0, 0.25, 1});
  for (const LayoutAxes& axes : without) EXPECT_EQ(axes.host_fraction, 0);
  size_t weights = 0;
  for (const LayoutAxes& axes : with) {
    if (!axes.weights_on_host) continue;
    ++weights;
    EXPECT_EQ(axes.host_fraction, 1);
    EXPECT_TRUE(axes.shared_out == SharedOut::kWeights || axes.data * axes.context == 1);
  }
  EXPECT_GT(weights, 0);
  EXPECT_EQ(with.size(), 3 * without.size() + weights);
}

TEST(LayoutSpaceTest, PutsWeightsOffInPipelinesOfOneChunk) {
  int put_off = 0;
  for (const LayoutAxes& axes : Visited(Resolved({}), 8, 8)) {
    if (axes.schedule != PlanSchedule::kZeroBubbleH1) continue;
    ++put_off;
    EXPECT_GT(axes.pipeline, 1);
    EXPECT_EQ(axes.chunks, 1);
  }
  EXPECT_GT(put_off, 0);
}

TEST(LayoutSpaceTest, HasGPipeAndAVOfTwoChunksWhereTheyAreWritten) {
  const config::PretrainConfig config = Resolved({});
  for (const PlanSchedule schedule :
       {PlanSchedule::kOneForwardOneBackward, PlanSchedule::kGPipe, PlanSchedule::kZeroBubbleV}) {
    int gpipe = 0, in_v = 0;
    LayoutSpace space(config, 4, 8, 8, {0}, schedule);
    const absl::Status status = space.VisitAll([&](const LayoutAxes& axes) -> absl::StatusOr<bool> {
      gpipe += axes.schedule == PlanSchedule::kGPipe;
      in_v += axes.schedule == PlanSchedule::kZeroBubbleV;
      EXPECT_TRUE(axes.schedule != PlanSchedule::kGPipe || axes.chunks == 1);
      EXPECT_TRUE(axes.schedule != PlanSchedule::kZeroBubbleV || axes.chunks == 2);
      return true;
    });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(gpipe > 0, schedule == PlanSchedule::kGPipe);
    EXPECT_EQ(in_v > 0, schedule == PlanSchedule::kZeroBubbleV);
  }
}

// Copies lie outermost where that brings the ranks of a pipeline into a domain.
TEST(LayoutSpaceTest, HasTwoOrdersOfRanksWhereTheyDiffer) {
  int outermost = 0;
  for (const LayoutAxes& axes : Visited(Resolved({}), 16, 8)) {
    if (!axes.data_is_outermost) continue;
    ++outermost;
    EXPECT_GT(axes.pipeline, 1);
    EXPECT_GT(axes.data, 1);
    EXPECT_LT(axes.tensor * axes.context, 8);
    EXPECT_EQ(axes.instances, 1);
  }
  EXPECT_GT(outermost, 0);
  for (const LayoutAxes& axes : Visited(Resolved({}), 8, 8)) EXPECT_FALSE(axes.data_is_outermost);
}

// 24 layers: the last of 4 stages has 3 while the others have 7, and 5 stages have 5, 5, 5, 5, 4.
// 22 layers on 8 stages: with embedding and loss each has 3 things.
TEST(LayoutSpaceTest, StagesOfAPipelineMayHaveDifferentNumbersOfLayers) {
  std::set<std::pair<int64_t, int64_t>> uneven;
  for (const LayoutAxes& axes : Visited(Resolved({"train.global_batch_size=20"}), 20, 8)) {
    if (axes.last_layers == 0) continue;
    EXPECT_EQ(axes.chunks, 1);
    EXPECT_FALSE(axes.ends_count);
    uneven.insert({axes.pipeline, axes.last_layers});
    const PartSizes sizes = SizesOfParts(axes, 24);
    EXPECT_EQ(sizes.first, sizes.inner);
    EXPECT_EQ(sizes.inner * (axes.pipeline - 1) + sizes.last, 24);
  }
  EXPECT_EQ(uneven, (std::set<std::pair<int64_t, int64_t>>{{2, 11}, {4, 3}, {5, 4}}));
  bool ends_count = false;
  for (const LayoutAxes& axes : Visited(Resolved({"model.num_layers=22"}), 8, 8)) {
    if (axes.pipeline != 8 || !axes.ends_count) continue;
    ends_count = true;
    EXPECT_EQ(SizesOfParts(axes, 22).first, 2);
    EXPECT_EQ(SizesOfParts(axes, 22).inner, 3);
    EXPECT_EQ(SizesOfParts(axes, 22).last, 2);
  }
  EXPECT_TRUE(ends_count);
}

TEST(LayoutSpaceTest, InstancesLieWithinTheDomainOfFastLinks) {
  const auto config = Resolved({});
  int instances = 0, sharing = 0;
  for (const LayoutAxes& axes : Visited(config, 32, 8)) {
    if (axes.instances == 1) continue;
    ++instances;
    sharing += axes.instances_share_states;
    EXPECT_NE(axes.shared_out, SharedOut::kNothing);
    const int64_t ranks = axes.data * axes.context / axes.instances;
    EXPECT_EQ(ranks * axes.instances, axes.data * axes.context);
    EXPECT_GT(ranks, 1);
    EXPECT_LE(ranks * axes.tensor, 8);
  }
  EXPECT_GT(instances, 0);
  EXPECT_EQ(2 * sharing, instances);
  for (const LayoutAxes& axes : Visited(config, 8, 8)) EXPECT_EQ(axes.instances, 1);
}

// The model has 16 heads, and 1024 channels in samples of 2048 tokens.
TEST(LayoutSpaceTest, HasGridsOfTensorParallelRanksThatSendLess) {
  const config::PretrainConfig config =
      Resolved({"model.hidden_size=1024", "model.num_attention_heads=16",
                "model.make_vocab_size_divisible_by=128", "train.global_batch_size=64"});
  const auto visited = [&](const GridRules& rules, int64_t* left_out) {
    std::vector<LayoutAxes> grids;
    LayoutSpace space(config, 8, 8, 8, {0}, PlanSchedule::kOneForwardOneBackward, rules);
    const absl::Status status = space.VisitAll([&](const LayoutAxes& axes) -> absl::StatusOr<bool> {
      if (axes.grid.is_grid()) grids.push_back(axes);
      return true;
    });
    EXPECT_TRUE(status.ok()) << status;
    *left_out = space.pruned().back().count;
    return grids;
  };
  GridRules rules;
  int64_t left_out = 0;
  EXPECT_TRUE(visited(rules, &left_out).empty());
  EXPECT_EQ(left_out, 0);
  rules.allows = [](const PlanGrid&) { return true; };
  const auto grids = visited(rules, &left_out);
  EXPECT_GT(left_out, 0);
  std::set<std::string> modes;
  for (const LayoutAxes& axes : grids) {
    EXPECT_EQ(axes.grid.ranks(), axes.tensor);
    EXPECT_EQ(axes.micro_batch % axes.grid.samples(), 0);
    EXPECT_EQ(axes.context, 1);
    EXPECT_FALSE(axes.is_sequence_parallel);
    EXPECT_FALSE(axes.weights_on_host);
    const LayerMatrices matrices = MatricesOf(1024, 4096, false, 16, 16, 64);
    const int64_t tokens = axes.micro_batch * config.model().seq_length();
    const int element_bytes = config.precision().bf16() ? 2 : 4;
    EXPECT_LE(BytesReceivedOnGrid(matrices, axes.grid, tokens, element_bytes),
              BytesReceivedIn1d(matrices, axes.tensor, tokens, element_bytes));
    modes.insert(axes.grid.mode());
  }
  EXPECT_EQ(modes, (std::set<std::string>{"2D", "2.5D", "3D"}));
  // Those that send more are there where they are asked for.
  rules.keeps_larger = true;
  EXPECT_GT(visited(rules, &left_out).size(), grids.size());
  EXPECT_EQ(left_out, 0);
  // The trainer may refuse some.
  rules.allows = [](const PlanGrid& grid) { return grid.is_cube; };
  for (const LayoutAxes& axes : visited(rules, &left_out)) EXPECT_TRUE(axes.grid.is_cube);
}

TEST(LayoutSpaceTest, EndsWhereAVisitSays) {
  const config::PretrainConfig config = Resolved({});
  LayoutSpace space(config, 8, 8, 8, {0});
  int visits = 0;
  EXPECT_TRUE(
      space.VisitAll([&](const LayoutAxes&) -> absl::StatusOr<bool> { return ++visits < 3; }).ok());
  EXPECT_EQ(visits, 3);
}

}  // namespace
}  // namespace megatron
