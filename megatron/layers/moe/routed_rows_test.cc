#include "megatron/layers/moe/routed_rows.h"

#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/layers/layer_harness.h"

namespace megatron {
namespace {

constexpr int kTokens = 7;

// Returns 100 more than the numbers of the rows from `begin` to `end`.
std::vector<double> Numbers(int64_t begin, int64_t end) {
  std::vector<double> numbers;
  for (int64_t i = begin; i < end; ++i) numbers.push_back(static_cast<double>(100 + i));
  return numbers;
}

TEST(RoutedRowsTest, OneRankRoutesAllRows) {
  LayerHarness harness({kTokens});
  const RoutedRows rows = RowsToRoute(harness.context());
  EXPECT_EQ(rows.begin, 0);
  EXPECT_EQ(rows.end, kTokens);
}

TEST(RoutedRowsTest, RanksShareTheRowsAndGatherThemInOrder) {
  for (const int size : {2, 3}) {
    const absl::Status status = RunRanks(size, [&](int rank, const ProcessGroup& group) {
      LayerHarness harness({kTokens}, group);
      const LayerContext& ctx = harness.context();
      const RoutedRows rows = RowsToRoute(ctx);
      EXPECT_EQ(rows.begin, kTokens * rank / size);
      EXPECT_EQ(rows.end, kTokens * (rank + 1) / size);
      const ops::HostTensor mine =
          ops::HostTensor::Of({rows.count()}, DType::kFloat32, Numbers(rows.begin, rows.end));
      const ops::HostTensor all({kTokens}, DType::kFloat32);
      GatherRouted(ctx, mine, all);
      EXPECT_EQ(all.Values(), Numbers(0, kTokens));
      const ops::HostTensor back({rows.count()}, DType::kFloat32);
      TakeRouted(ctx, all, back);
      EXPECT_EQ(back.Values(), mine.Values());
      return absl::OkStatus();
    });
    EXPECT_EQ(status, absl::OkStatus());
  }
}

// The first of two context-parallel ranks holds the first and the last quarter of each sample.
TEST(RoutedRowsTest, RowsOfContextParallelRanksAreGatheredInTheOrderOfTheSamples) {
  const absl::Status status = RunRanks(2, [&](int rank, const ProcessGroup& group) {
    LayerHarness harness({4});
    LayerContext& ctx = harness.context();
    ctx.context_group = group;
    harness.batch().context.sample_length = 8;
    std::vector<double> numbers;
    ForEachRoutedRun(ctx, [&](int64_t whole, int64_t mine, int64_t count) {
      EXPECT_EQ(mine, static_cast<int64_t>(numbers.size()));
      for (const double number : Numbers(whole, whole + count)) numbers.push_back(number);
    });
    EXPECT_EQ(numbers, rank == 0 ? std::vector<double>({100, 101, 106, 107})
                                 : std::vector<double>({102, 103, 104, 105}));
    const ops::HostTensor mine = ops::HostTensor::Of({4}, DType::kFloat32, numbers);
    const ops::HostTensor all({8}, DType::kFloat32);
    GatherRouted(ctx, mine, all);
    EXPECT_EQ(all.Values(), Numbers(0, 8));
    return absl::OkStatus();
  });
  EXPECT_EQ(status, absl::OkStatus());
}

}  // namespace
}  // namespace megatron
