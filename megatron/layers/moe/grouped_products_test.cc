#include "megatron/layers/moe/grouped_products.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/layers/float8_history.h"
#include "megatron/layers/linear_products_harness.h"
#include "megatron/layers/moe/expert_part.h"
#include "megatron/ops/host_tensor.h"

namespace megatron {
namespace {

constexpr int64_t kExperts = 4, kRows = 55;
const char kName[] = "experts.linear_fc1.weight";

// Expert 0 has two groups, as where two ranks sent rows for it; expert 1 has as many rows as GPUs
// need, and is used in place; expert 3 has none.
const std::vector<ops::RowGroup> kGroups = {{0, 0, 2}, {1, 2, 18}, {2, 18, 41}, {0, 41, 55}};

// The operands and results of all experts.
struct All {
  All()
      : x(Spread({kRows, kIn}, 1)),
        w(Spread({kExperts, kOut, kIn}, 2)),
        dy(Spread({kRows, kOut}, 3)),
        y({kRows, kOut}, kF32),
        dx({kRows, kIn}, kF32),
        dw(HostTensor::Normal({kExperts, kOut, kIn}, kF32, 4)) {}

  // Values whose sizes differ from row to row, so that experts have scales of their own.
  static HostTensor Spread(const Shape& shape, uint32_t seed) {
    HostTensor values = HostTensor::Normal(shape, kF32, seed);
    const int64_t columns = shape[-1];
    for (int64_t i = 0; i < values.numel(); ++i)
      values.Set(i, values.Get(i) * static_cast<double>(1 + i / columns % 13));
    return values;
  }

  HostTensor x, w, dy, y, dx, dw;
};

Float8Options Recipe(Float8Recipe recipe, Float8History* history = nullptr) {
  Float8Options options = Enabled();
  options.recipe = recipe;
  options.history = history;
  return options;
}

// Backward does not read an input whose codes are kept.
Tensor InputOfBackward(const GroupedProducts& products, const LayerContext& ctx, const All& all) {
  return products.keeps_codes(ctx) ? Tensor() : all.x.tensor();
}

void Train(const GroupedProducts& products, All* all, bool deferred = false) {
  ThreadPool pool(1);
  Arena saved({}, 1 << 22, "saved", nullptr), scratch({}, 1 << 22, "scratch", nullptr),
      later({}, 1 << 22, "deferred", nullptr);
  LayerContext ctx = {ProcessGroup(), Stream::Cpu(&pool), &saved, &scratch, nullptr};
  if (deferred) ctx.deferred = &later;
  GroupedProducts::Saved kept;
  products.Forward(ctx, kGroups, all->x, all->w, all->y, &kept);
  EXPECT_EQ(scratch.Mark(), 0);
  products.Reserve(ctx, all->dy, &kept);
  products.BackwardInput(ctx, kGroups, all->dy, all->w, all->dx, &kept);
  products.BackwardWeight(ctx, kGroups, all->dy, InputOfBackward(products, ctx, *all), all->dw,
                          kept);
}

HostTensor RowsOf(const HostTensor& x, int64_t expert) {
  std::vector<double> values;
  const int64_t columns = x.tensor().dim(1);
  for (const ops::RowGroup& group : kGroups) {
    if (group.expert != expert) continue;
    for (int64_t i = group.begin * columns; i < group.end * columns; ++i)
      values.push_back(x.Get(i));
  }
  HostTensor rows({static_cast<int64_t>(values.size()) / columns, columns}, kF32);
  for (size_t i = 0; i < values.size(); ++i) rows.Set(static_cast<int64_t>(i), values[i]);
  return rows;
}

Values MatrixOf(const HostTensor& w, int64_t expert) {
  const Values values = w.Values();
  return Values(values.begin() + expert * kOut * kIn, values.begin() + (expert + 1) * kOut * kIn);
}

// Each expert's products are those of a linear layer that has its rows and its matrix alone.
TEST(GroupedProductsTest, AreThoseOfALayerForEachExpert) {
  for (const Float8Recipe recipe : {Float8Recipe::kTensorwise, Float8Recipe::kBlockwise}) {
    for (const auto& [weight_gradient, keep_codes] :
         {std::pair(true, false), std::pair(true, true), std::pair(false, true)}) {
      SCOPED_TRACE(testing::Message()
                   << static_cast<int>(recipe) << " " << weight_gradient << " " << keep_codes);
      Float8Options options = Recipe(recipe);
      options.weight_gradient = weight_gradient;
      const All before;
      All all;
      Train(GroupedProducts(options, Cut::kOutput, kName, kExperts, ExpertGroups{}, keep_codes),
            &all);
      for (int64_t expert = 0; expert < kExperts; ++expert) {
        SCOPED_TRACE(expert);
        const HostTensor x = RowsOf(before.x, expert), dy = RowsOf(before.dy, expert);
        const Values dw = MatrixOf(before.dw, expert), w = MatrixOf(before.w, expert);
        if (expert == 3) {
          EXPECT_EQ(MatrixOf(all.dw, expert), dw);
          continue;
        }
        megatron::Layer alone(x.tensor().dim(0), kIn, kOut, kF32);
        for (int64_t i = 0; i < x.numel(); ++i) alone.x.Set(i, x.Get(i));
        for (int64_t i = 0; i < dy.numel(); ++i) alone.dy.Set(i, dy.Get(i));
        for (int64_t i = 0; i < kOut * kIn; ++i) {
          alone.w.Set(i, w[static_cast<size_t>(i)]);
          alone.dw.Set(i, dw[static_cast<size_t>(i)]);
        }
        TrainAlone(options, &alone);
        EXPECT_EQ(RowsOf(all.y, expert).Values(), alone.y.Values());
        EXPECT_EQ(RowsOf(all.dx, expert).Values(), alone.dx.Values());
        EXPECT_EQ(MatrixOf(all.dw, expert), alone.dw.Values());
      }
    }
  }
}

// The rows of experts 0 and 1 are together here, as are those of 2 and 3.
TEST(GroupedProductsTest, RangesOfExpertsHaveTheBitsOfAllExperts) {
  const std::vector<ops::RowGroup> groups = {{0, 0, 2}, {1, 2, 18}, {0, 18, 32}, {2, 32, 55}};
  const std::vector<ExpertPart> whole = {{ExpertRange(), 0, kRows, groups}},
                                halves = {{{0, 2}, 0, 32, {{0, 0, 2}, {1, 2, 18}, {0, 18, 32}}},
                                          {{2, 4}, 32, kRows, {{2, 0, 23}}}};
  const auto train = [&](const GroupedProducts& products, const std::vector<ExpertPart>& parts,
                         All* all) {
    ThreadPool pool(1);
    Arena saved({}, 1 << 22, "saved", nullptr), scratch({}, 1 << 22, "scratch", nullptr);
    const LayerContext ctx = {ProcessGroup(), Stream::Cpu(&pool), &saved, &scratch, nullptr};
    GroupedProducts::Saved kept;
    for (const ExpertPart& part : parts) {
      products.Forward(ctx, part.groups, part.Of(all->x), all->w, part.Of(all->y), &kept,
                       part.experts);
    }
    products.Reserve(ctx, all->dy, &kept);
    for (const ExpertPart& part : parts) {
      products.BackwardInput(ctx, part.groups, part.Of(all->dy), all->w, part.Of(all->dx), &kept,
                             part.experts);
    }
    products.BackwardWeight(ctx, groups, all->dy, InputOfBackward(products, ctx, *all), all->dw,
                            kept);
    return saved.high_water();
  };
  for (const Float8Options& options :
       {Float8Options(), Recipe(Float8Recipe::kTensorwise), Recipe(Float8Recipe::kBlockwise)}) {
    for (const bool keep_codes : {false, true}) {
      const GroupedProducts products(options, Cut::kOutput, kName, kExperts, {}, keep_codes);
      All at_once, in_turn;
      // An expert's codes are made once.
      EXPECT_EQ(train(products, halves, &in_turn), train(products, whole, &at_once));
      EXPECT_EQ(in_turn.y.Bytes(), at_once.y.Bytes());
      EXPECT_EQ(in_turn.dx.Bytes(), at_once.dx.Bytes());
      EXPECT_EQ(in_turn.dw.Bytes(), at_once.dw.Bytes());
    }
  }
}

TEST(GroupedProductsTest, WeightGradientsThatArePutOffHaveTheSameBits) {
  for (const Float8Recipe recipe : {Float8Recipe::kTensorwise, Float8Recipe::kBlockwise}) {
    for (const bool keep_codes : {false, true}) {
      All at_once, later;
      const GroupedProducts products(Recipe(recipe), Cut::kInput, kName, kExperts, ExpertGroups{},
                                     keep_codes);
      Train(products, &at_once);
      Train(products, &later, /*deferred=*/true);
      EXPECT_EQ(later.y.Bytes(), at_once.y.Bytes());
      EXPECT_EQ(later.dx.Bytes(), at_once.dx.Bytes());
      EXPECT_EQ(later.dw.Bytes(), at_once.dw.Bytes());
    }
  }
}

TEST(GroupedProductsTest, CodesAreKeptInTrainingWhereTheWeightsGradientReadsThem) {
  ThreadPool pool(1);
  LayerContext ctx = {ProcessGroup(), Stream::Cpu(&pool), nullptr, nullptr, nullptr};
  const auto keeps = [&](const Float8Options& options, bool keep_codes = true) {
    return GroupedProducts(options, Cut::kOutput, kName, kExperts, ExpertGroups{}, keep_codes)
        .keeps_codes(ctx);
  };
  Float8Options in_bf16 = Enabled();
  in_bf16.weight_gradient = false;
  EXPECT_FALSE(keeps(Enabled(), /*keep_codes=*/false));
  EXPECT_FALSE(keeps(in_bf16));
  EXPECT_FALSE(keeps(Float8Options()));
  // An expert's rows are whole on each rank that has them.
  for (const bool sequence_parallel : {false, true}) {
    ctx.sequence_parallel = sequence_parallel;
    EXPECT_TRUE(keeps(Enabled()));
  }
  ctx.training = false;
  EXPECT_FALSE(keeps(Enabled()));
}

TEST(GroupedProductsTest, CodesOfAnyGroupsFitWhereThoseOfOneExpertWithAllRowsDo) {
  constexpr int64_t kAllRows = 300;
  const Device meta = {DeviceType::kMeta};
  const auto tensor = [&](const Shape& shape) { return Tensor(nullptr, kF32, shape, meta); };
  for (const Float8Recipe recipe : {Float8Recipe::kTensorwise, Float8Recipe::kBlockwise}) {
    const GroupedProducts products(Recipe(recipe), Cut::kOutput, kName, kExperts, ExpertGroups{},
                                   /*keep_codes=*/true);
    const auto kept = [&](const std::vector<int64_t>& rows) {
      std::vector<ops::RowGroup> groups;
      int64_t begin = 0;
      for (size_t expert = 0; expert < rows.size(); ++expert) {
        groups.push_back({static_cast<int64_t>(expert), begin, begin + rows[expert]});
        begin += rows[expert];
      }
      EXPECT_EQ(begin, kAllRows);
      Arena saved(meta, 0, "saved", nullptr), scratch(meta, 0, "scratch", nullptr);
      const LayerContext ctx = {ProcessGroup(), Stream::Meta(), &saved, &scratch, nullptr};
      GroupedProducts::Saved of_forward;
      products.Forward(ctx, groups, tensor({kAllRows, kIn}), tensor({kExperts, kOut, kIn}),
                       tensor({kAllRows, kOut}), &of_forward);
      return saved.Mark();
    };
    const int64_t planned = kept({kAllRows, 0, 0, 0});
    EXPECT_GT(planned, kAllRows * kIn);
    EXPECT_LT(planned, kAllRows * kIn * 3 / 2);
    for (const std::vector<int64_t>& rows : std::vector<std::vector<int64_t>>{{75, 75, 75, 75},
                                                                              {1, 1, 1, 297},
                                                                              {129, 129, 41, 1},
                                                                              {17, 33, 49, 201},
                                                                              {0, 150, 150, 0}})
      EXPECT_LE(kept(rows), planned) << rows[0] << " " << rows[1];
  }
}

// Two ranks with two experts each: every rank knows the magnitudes of all experts, and an expert's
// results are those of a rank that has all of them.
TEST(GroupedProductsTest, DelayedScalesAreThoseOfTheExpertOnEveryRank) {
  const auto step = [](Float8History* history, const GroupedProducts& products,
                       absl::Span<const ProcessGroup> groups, All* all,
                       absl::Span<const ops::RowGroup> rows, const Tensor& w, const Tensor& dw) {
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    Arena saved({}, 1 << 22, "saved", nullptr), scratch({}, 1 << 22, "scratch", nullptr);
    LayerContext ctx = {ProcessGroup(), stream, &saved, &scratch, nullptr};
    GroupedProducts::Saved kept;
    history->StartStep(stream);
    products.Forward(ctx, rows, all->x, w, all->y, &kept);
    products.Reserve(ctx, all->dy, &kept);
    products.BackwardInput(ctx, rows, all->dy, w, all->dx, &kept);
    products.BackwardWeight(ctx, rows, all->dy, InputOfBackward(products, ctx, *all), dw, kept);
    history->StartReduce(groups, stream);
    history->Record(stream);
  };
  All whole;
  Float8History history{Float8HistoryOptions{}};
  EXPECT_EQ(history.Add("before.weight"), 0);
  const GroupedProducts products(Recipe(Float8Recipe::kDelayed, &history), Cut::kOutput, kName,
                                 kExperts, {});
  history.Allocate(Device(), nullptr);
  for (int i = 0; i < 2; ++i) step(&history, products, {}, &whole, kGroups, whole.w, whole.dw);
  ASSERT_EQ(history.Tensors().size(), 2u);
  EXPECT_EQ(history.Tensors()[1].name, kName);
  EXPECT_EQ(history.Tensors()[1].tensor.shape(), (Shape{kExperts, 1, 3}));

  for (const bool keep_codes : {false, true}) {
    ASSERT_TRUE(RunRanks(2, [&](int rank, const ProcessGroup& world) {
                  ExpertGroups groups;
                  groups.expert = world;
                  Float8History mine{Float8HistoryOptions{}};
                  mine.Add("before.weight");
                  const GroupedProducts part(Recipe(Float8Recipe::kDelayed, &mine), Cut::kOutput,
                                             kName, kExperts, groups, keep_codes);
                  mine.Allocate(Device(), nullptr);
                  // Each rank has all rows here, and takes those of its experts for its own.
                  std::vector<ops::RowGroup> rows;
                  for (const ops::RowGroup& group : kGroups) {
                    if (group.expert / 2 == rank)
                      rows.push_back({group.expert % 2, group.begin, group.end});
                  }
                  All all;
                  const Tensor w = all.w.tensor().Slice(0, 2 * rank, 2 * rank + 2),
                               dw = all.dw.tensor().Slice(0, 2 * rank, 2 * rank + 2);
                  for (int i = 0; i < 2; ++i) step(&mine, part, {world}, &all, rows, w, dw);
                  for (int64_t expert = 2 * rank; expert < 2 * rank + 2; ++expert) {
                    EXPECT_EQ(RowsOf(all.y, expert).Bytes(), RowsOf(whole.y, expert).Bytes());
                    EXPECT_EQ(RowsOf(all.dx, expert).Bytes(), RowsOf(whole.dx, expert).Bytes());
                    EXPECT_EQ(MatrixOf(all.dw, expert), MatrixOf(whole.dw, expert));
                  }
                  for (int64_t layer = 0; layer < 1 + kExperts; ++layer) {
                    for (int64_t i = 0; i < 3; ++i) {
                      EXPECT_EQ(mine.layer(layer).amax_3.data<float>()[i],
                                history.layer(layer).amax_3.data<float>()[i]);
                    }
                  }
                  return world.status();
                }).ok());
  }
  // What moved the second step's codes away from the first one's is known for each expert that had
  // rows; the weight of the one that had none is known, too.
  const float* const idle = history.layer(4).amax_3.data<float>();
  EXPECT_EQ(idle[0], 0);
  EXPECT_GT(idle[1], 0);
  EXPECT_EQ(idle[2], 0);
}

}  // namespace
}  // namespace megatron
