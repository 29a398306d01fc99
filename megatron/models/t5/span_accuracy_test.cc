#include "megatron/models/t5/span_accuracy.h"

#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

template <typename T>
Tensor View(std::vector<T>* values, DType dtype) {
  return Tensor(values->data(), dtype, {static_cast<int64_t>(values->size())});
}

TEST(SpanAccuracyTest, ASpanCountsWhereEachLabelIsRight) {
  // Spans of 2, 1, 3 and 1 labels, in any order; two labels belong to none.
  std::vector<int32_t> span = {-1, 0, 0, 1, 2, 2, -1, 2, 3};
  std::vector<float> hit = {0, 1, 1, 0, 1, 1, 1, 0, 1};
  std::vector<float> missing = {-1, 0, -2, 0}, weight = {1, 1, 1, 1}, sums = {10, 20};
  MicroBatch batch;
  batch.spans = {View(&span, DType::kInt32), View(&missing, DType::kFloat32),
                 View(&weight, DType::kFloat32)};
  MemoryLedger ledger;
  ThreadPool pool(1);
  Arena scratch(Device(), 1 << 12, "scratch", &ledger);
  const LayerContext ctx{ProcessGroup(), Stream::Cpu(&pool), /*saved=*/nullptr, &scratch, &batch};
  CountExactSpans(ctx, View(&hit, DType::kFloat32), View(&sums, DType::kFloat32));
  EXPECT_EQ(sums, (std::vector<float>{12, 24}));
  // Adds to what is there, and nothing where there are no spans.
  hit.assign(9, 1);
  CountExactSpans(ctx, View(&hit, DType::kFloat32), View(&sums, DType::kFloat32));
  EXPECT_EQ(sums, (std::vector<float>{16, 28}));
  batch.spans = {};
  CountExactSpans(ctx, View(&hit, DType::kFloat32), View(&sums, DType::kFloat32));
  EXPECT_EQ(sums, (std::vector<float>{16, 28}));
}

TEST(SpanAccuracyTest, ASpanWhoseLabelsAreOnSeveralRanksCountsOnce) {
  // Of spans 0 and 1 each rank has a label, of span 2 the second alone.
  std::vector<int32_t> spans[2] = {{0, 1, -1, 1}, {0, 2, 1, -1}};
  std::vector<float> hits[2] = {{1, 1, 0, 1}, {1, 1, 0, 0}};
  std::vector<float> missing = {-1, -2, 0}, weight = {1, 1, 1}, sums[2] = {{0, 0}, {0, 0}};
  const absl::Status status = RunRanks(2, [&](int rank, const ProcessGroup& world) {
    MicroBatch batch;
    batch.spans = {View(&spans[rank], DType::kInt32), View(&missing, DType::kFloat32),
                   View(&weight, DType::kFloat32)};
    ThreadPool pool(1);
    Arena scratch(Device(), 1 << 12, "scratch", nullptr);
    LayerContext ctx{ProcessGroup(), Stream::Cpu(&pool), /*saved=*/nullptr, &scratch, &batch};
    ctx.context_group = world;
    CountExactSpans(ctx, View(&hits[rank], DType::kFloat32), View(&sums[rank], DType::kFloat32));
    return world.status();
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(sums[0], (std::vector<float>{2, 3}));
  EXPECT_EQ(sums[1], (std::vector<float>{0, 0}));
}

}  // namespace
}  // namespace megatron
