#include "megatron/optim/flat_layout.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

struct Model {
  Parameter* Add(const Shape& shape) {
    owned.push_back(std::make_unique<Parameter>());
    owned.back()->name = std::to_string(owned.size());
    owned.back()->sharding = Replicated(shape);
    return owned.back().get();
  }
  std::vector<std::unique_ptr<Parameter>> owned;
};

TEST(FlatLayoutTest, BlocksComeInReverseAndAreDividedIntoEqualShards) {
  Model model;
  std::vector<Parameter*> parameters;
  AppendBlock({model.Add({100})}, &parameters);
  AppendBlock({model.Add({3}), model.Add({65})}, &parameters);
  const FlatLayout layout = PlanFlatLayout(parameters, {3, 1}, {});
  ASSERT_EQ(layout.buckets.size(), 2u);
  EXPECT_EQ(layout.buckets[0].bucket_group, 1);
  EXPECT_EQ(layout.buckets[0].first_parameter, 0);
  EXPECT_EQ(layout.buckets[0].last_parameter, 2);
  EXPECT_EQ(layout.buckets[0].range.begin, 0);
  EXPECT_EQ(layout.buckets[0].range.end, 192);  // 65 + 3 at 128, to a multiple of 3 * 64
  EXPECT_EQ(layout.buckets[0].shard.begin, 64);
  EXPECT_EQ(layout.buckets[0].shard.end, 128);
  EXPECT_EQ(layout.buckets[1].range.begin, 192);
  EXPECT_EQ(layout.buckets[1].shard_begin, 64);
  EXPECT_EQ(layout.num_elements, 384);
  EXPECT_EQ(layout.shard_elements, 128);
}

TEST(FlatLayoutTest, ShardsOfAllRanksCoverEachBucketOnce) {
  Model model;
  std::vector<Parameter*> parameters;
  for (int i = 1; i < 6; ++i) AppendBlock({model.Add({i * 37}), model.Add({i})}, &parameters);
  for (int ranks : {1, 2, 3, 8}) {
    std::vector<int64_t> end(5, 0);
    for (int rank = 0; rank < ranks; ++rank) {
      const FlatLayout layout = PlanFlatLayout(parameters, {ranks, rank}, {});
      for (size_t b = 0; b < layout.buckets.size(); ++b) {
        const Bucket& bucket = layout.buckets[b];
        EXPECT_EQ(bucket.shard.begin, rank == 0 ? bucket.range.begin : end[b]);
        end[b] = bucket.shard.end;
        if (rank == ranks - 1) {
          EXPECT_EQ(end[b], bucket.range.end);
        }
      }
    }
  }
}

// The stages that share a tied weight exchange their shards of it.
TEST(FlatLayoutTest, TheShardsOfATiedWeightAreTheSameElementsOnBothItsStages) {
  for (int ranks : {1, 2, 3, 5}) {
    for (int64_t others : {1, 64, 65, 200}) {
      Model first, last;
      std::vector<Parameter*> on_first, on_last;
      Parameter *owner = first.Add({50, 7}), *copy = last.Add({50, 7});
      owner->tied = copy->tied = true;
      copy->owner = false;
      AppendBlock({owner}, &on_first);
      AppendBlock({first.Add({others})}, &on_first);
      AppendBlock({copy}, &on_last);
      AppendBlock({last.Add({17})}, &on_last);
      const FlatLayout a = PlanFlatLayout(on_first, {ranks, ranks - 1}, {}),
                       b = PlanFlatLayout(on_last, {ranks, ranks - 1}, {});
      const Bucket& mine = a.buckets.back();
      const Bucket& theirs = b.buckets.front();
      EXPECT_EQ(theirs.section, Section::kCopies);
      EXPECT_EQ(mine.range.size(), theirs.range.size());
      EXPECT_EQ(mine.shard.begin - mine.range.begin, theirs.shard.begin - theirs.range.begin);
    }
  }
}

TEST(FlatLayoutTest, ABucketGroupTakesBlocksUntilItHasTheBucketSize) {
  Model model;
  std::vector<Parameter*> parameters;
  for (int64_t size : {500, 40, 50, 100, 10}) AppendBlock({model.Add({size})}, &parameters);
  EXPECT_EQ(PlanFlatLayout(parameters, {}, {}).bucket_group_of_block,
            (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(PlanFlatLayout(parameters, {}, {}, 105).bucket_group_of_block,
            (std::vector<int>{0, 0, 0, 1, 1}));
  const FlatLayout layout = PlanFlatLayout(parameters, {}, {}, 1000);
  EXPECT_EQ(layout.bucket_group_of_block, (std::vector<int>{0, 0, 0, 0, 0}));
  EXPECT_EQ(layout.buckets.size(), 1u);
  parameters[2]->tied = true;
  EXPECT_EQ(PlanFlatLayout(parameters, {}, {}, 1000).bucket_group_of_block,
            (std::vector<int>{0, 0, 1, 2, 2}));
}

TEST(FlatLayoutTest, AWholeParameterIsInOneShard) {
  Model model;
  std::vector<Parameter*> parameters;
  int64_t elements = 0, largest = 0;
  for (int64_t size : {640, 64, 1, 320, 333, 128, 512, 65, 200, 7}) {
    AppendBlock({model.Add({size})}, &parameters);
    elements += (size + 63) / 64 * 64;
    largest = std::max(largest, size);
  }
  for (int ranks : {1, 2, 3, 8}) {
    SCOPED_TRACE(ranks);
    std::vector<int> holders(parameters.size(), 0);
    for (int rank = 0; rank < ranks; ++rank) {
      const FlatLayout layout = PlanFlatLayout(parameters, {ranks, rank}, {},
                                               /*bucket_size=*/1 << 20, ShardUnit::kParameter);
      ASSERT_EQ(layout.buckets.size(), 1u);
      const Bucket& bucket = layout.buckets[0];
      EXPECT_EQ(bucket.shard.size() * ranks, bucket.range.size());
      EXPECT_LE(bucket.shard.size(), elements / ranks + largest);
      ASSERT_EQ(layout.parameters.size(), parameters.size());
      int64_t end = 0;
      for (const FlatParameter& flat : layout.parameters) {
        EXPECT_GE(flat.range.begin, end);
        EXPECT_EQ(flat.range.begin % 64, 0);
        end = flat.range.end;
        EXPECT_EQ(flat.range.size(), flat.parameter->sharding.local_shape.numel());
        const int64_t here = Common(flat.range, bucket.shard).size();
        EXPECT_TRUE(here == 0 || here == flat.range.size()) << flat.parameter->name;
        if (here > 0) ++holders[std::stoi(flat.parameter->name) - 1];
      }
      EXPECT_LE(end, bucket.range.end);
    }
    for (const int count : holders) EXPECT_EQ(count, 1);
  }
}

TEST(FlatLayoutTest, BlocksWithoutAMatrixAreCutAnywhereAndSentAlone) {
  Model model;
  std::vector<Parameter*> parameters;
  Parameter* const words = model.Add({1000, 10});
  AppendBlock({words}, &parameters);
  for (int layer = 0; layer < 3; ++layer) {
    Parameter *matrix = model.Add({30, 20}), *wide = model.Add({20, 60});
    matrix->matrix = wide->matrix = MatrixDims();
    AppendBlock({matrix, model.Add({30}), wide}, &parameters);
  }
  AppendBlock({model.Add({20})}, &parameters);
  for (int rank = 0; rank < 4; ++rank) {
    const FlatLayout layout =
        PlanFlatLayout(parameters, {4, rank}, {}, /*bucket_size=*/1 << 20, ShardUnit::kMatrix);
    EXPECT_EQ(layout.bucket_group_of_block, (std::vector<int>{0, 1, 1, 1, 2}));
    for (const FlatParameter& flat : layout.parameters) {
      const Bucket& bucket = layout.buckets[flat.bucket];
      const int64_t here = Common(flat.range, bucket.shard).size();
      if (flat.parameter == words) {
        EXPECT_EQ(bucket.range.size(), 10048);
        EXPECT_EQ(here, rank < 3 ? 2512 : 10000 - 3 * 2512);
      } else if (flat.parameter->matrix.has_value()) {
        EXPECT_TRUE(here == 0 || here == flat.range.size()) << flat.parameter->name;
      }
    }
  }
}

TEST(FlatLayoutTest, OnOneRankWholeParametersStandAsOthersDo) {
  Model model;
  std::vector<Parameter*> parameters;
  for (int64_t size : {500, 40, 64, 100}) AppendBlock({model.Add({size})}, &parameters);
  const FlatLayout cut = PlanFlatLayout(parameters, {}, {}, 1000);
  const FlatLayout whole = PlanFlatLayout(parameters, {}, {}, 1000, ShardUnit::kParameter);
  EXPECT_EQ(whole.num_elements, cut.num_elements);
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(whole.parameters[i].parameter, cut.parameters[i].parameter);
    EXPECT_EQ(whole.parameters[i].range.begin, cut.parameters[i].range.begin);
  }
}

TEST(FlatLayoutTest, ExpertsAreShardedOverTheirOwnRanks) {
  Model model;
  std::vector<Parameter*> parameters = {model.Add({10}), model.Add({100})};
  parameters[1]->sharding.expert_grid = true;
  const FlatLayout layout = PlanFlatLayout(parameters, {4, 3}, {2, 1});
  ASSERT_EQ(layout.buckets.size(), 2u);
  EXPECT_EQ(layout.buckets[0].shard.size(), 16);
  EXPECT_EQ(layout.buckets[1].section, Section::kExperts);
  EXPECT_EQ(layout.buckets[1].bucket_group, layout.buckets[0].bucket_group);
  EXPECT_EQ(layout.buckets[1].shard.size(), 64);
}

TEST(FlatLayoutTest, PartsCoverEachShardOnceAndHoldWholeParametersWhereSharedOutSo) {
  Model model;
  std::vector<Parameter*> parameters;
  for (int64_t size : {640, 64, 1, 320, 333, 128, 512, 65, 200, 7})
    AppendBlock({model.Add({size})}, &parameters);
  constexpr int kShards = 3, kParts = 2;
  for (const ShardUnit unit : {ShardUnit::kElement, ShardUnit::kParameter}) {
    std::vector<int> holders(parameters.size(), 0);
    for (int shard = 0; shard < kShards; ++shard) {
      for (int part = 0; part < kParts; ++part) {
        const FlatLayout layout = PlanFlatLayout(parameters, {kShards, shard, kParts, part}, {},
                                                 /*bucket_size=*/1 << 20, unit);
        const Bucket& bucket = layout.buckets[0];
        EXPECT_EQ(bucket.part.size() * kParts, bucket.shard.size());
        EXPECT_EQ(bucket.part.begin, bucket.shard.begin + part * bucket.part.size());
        EXPECT_EQ(layout.part_elements, bucket.part.size());
        EXPECT_EQ(layout.shard_elements, bucket.shard.size());
        if (unit == ShardUnit::kElement) continue;
        for (const FlatParameter& flat : layout.parameters) {
          const int64_t here = Common(flat.range, bucket.part).size();
          EXPECT_TRUE(here == 0 || here == flat.range.size()) << flat.parameter->name;
          if (here > 0) ++holders[std::stoi(flat.parameter->name) - 1];
        }
      }
    }
    if (unit == ShardUnit::kElement) continue;
    for (const int count : holders) EXPECT_EQ(count, 1);
  }
}

}  // namespace
}  // namespace megatron
