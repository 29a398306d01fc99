#include "megatron/ops/embedding.h"

#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/allocation_counter.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/tolerances.h"

namespace megatron::ops {
namespace {

constexpr int64_t kRows = 6, kFirstRow = 10;

// The ids include every row of this part several times, and rows of other parts on both sides.
HostTensor Ids(int64_t tokens) {
  HostTensor ids({tokens}, DType::kInt32);
  for (int64_t t = 0; t < tokens; ++t) ids.Set(t, kFirstRow - 2 + t * 5 % (kRows + 4));
  return ids;
}

int64_t RowHere(const HostTensor& ids, int64_t t) {
  const int64_t row = static_cast<int64_t>(ids.Get(t)) - kFirstRow;
  return row >= 0 && row < kRows ? row : -1;
}

class EmbeddingTest : public testing::TestWithParam<DType> {
 protected:
  ThreadPool pool_{2};
};

TEST_P(EmbeddingTest, ForwardCopiesRowsThatAreHere) {
  for (const int64_t columns : {1, 20, 64, 130}) {
    const HostTensor ids = Ids(23), table = HostTensor::Normal({kRows, columns}, GetParam(), 1);
    const HostTensor y = HostTensor::Normal({23, columns}, GetParam(), 2);
    EmbeddingForward(Stream::Cpu(&pool_), ids, table, kFirstRow, /*accumulate=*/false, y);
    for (int64_t i = 0; i < y.numel(); ++i) {
      const int64_t row = RowHere(ids, i / columns);
      ASSERT_EQ(y.Get(i), row < 0 ? 0 : table.Get(row * columns + i % columns));
    }
  }
}

TEST_P(EmbeddingTest, ForwardAddsRowsAndRoundsOnce) {
  for (const int64_t columns : {1, 20, 64, 130}) {
    const HostTensor ids = Ids(23), table = HostTensor::Normal({kRows, columns}, GetParam(), 1);
    const HostTensor old = HostTensor::Normal({23, columns}, GetParam(), 2);
    const HostTensor y = HostTensor::Normal({23, columns}, GetParam(), 2);
    HostTensor want({23, columns}, GetParam());
    for (int64_t i = 0; i < y.numel(); ++i) {
      const int64_t row = RowHere(ids, i / columns);
      want.Set(i, old.Get(i) + (row < 0 ? 0 : table.Get(row * columns + i % columns)));
    }
    EmbeddingForward(Stream::Cpu(&pool_), ids, table, kFirstRow, /*accumulate=*/true, y);
    EXPECT_EQ(y.Bytes(), want.Bytes());
  }
}

TEST_P(EmbeddingTest, BackwardAddsInTheOrderOfTokens) {
  for (const int64_t columns : {1, 20, 64, 130}) {
    const HostTensor ids = Ids(57), dy = HostTensor::Normal({57, columns}, GetParam(), 3);
    const HostTensor dtable = HostTensor::Normal({kRows, columns}, DType::kFloat32, 4);
    HostTensor want = HostTensor::Normal({kRows, columns}, DType::kFloat32, 4);
    for (int64_t i = 0; i < dy.numel(); ++i) {
      const int64_t row = RowHere(ids, i / columns);
      if (row < 0) continue;
      const int64_t at = row * columns + i % columns;
      want.Set(at, static_cast<float>(want.Get(at)) + static_cast<float>(dy.Get(i)));
    }
    EmbeddingBackward(Stream::Cpu(&pool_), ids, dy, kFirstRow, dtable);
    EXPECT_EQ(dtable.Bytes(), want.Bytes());
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, EmbeddingTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16));

TEST(EmbeddingBitsTest, BitsDoNotDependOnTheNumberOfThreads) {
  const HostTensor ids = Ids(200), dy = HostTensor::Normal({200, 100}, DType::kBFloat16, 3);
  ThreadPool one(1);
  const HostTensor want({kRows, 100}, DType::kFloat32);
  EmbeddingBackward(Stream::Cpu(&one), ids, dy, kFirstRow, want);
  for (int threads : {2, 3, 16}) {
    ThreadPool pool(threads);
    const HostTensor got({kRows, 100}, DType::kFloat32);
    EmbeddingBackward(Stream::Cpu(&pool), ids, dy, kFirstRow, got);
    EXPECT_EQ(got.Bytes(), want.Bytes());
  }
}

TEST(EmbeddingMemoryTest, NothingIsAllocated) {
  ThreadPool pool(2);
  const HostTensor ids = Ids(20), dy = HostTensor::Normal({20, 64}, DType::kFloat32, 3);
  const HostTensor table({kRows, 64}, DType::kFloat32);
  EmbeddingForward(Stream::Cpu(&pool), ids, table, kFirstRow, true, dy);
  const int64_t before = AllocationCount();
  EmbeddingForward(Stream::Cpu(&pool), ids, table, kFirstRow, true, dy);
  EmbeddingBackward(Stream::Cpu(&pool), ids, dy, kFirstRow, table);
  EXPECT_EQ(AllocationCount(), before);
}

TEST(EmbeddingMetaTest, ShapesAreCheckedAndNothingRuns) {
  const Device meta = {DeviceType::kMeta, 0};
  const Tensor ids(nullptr, DType::kInt32, {4}, meta),
      table(nullptr, DType::kFloat32, {9, 8}, meta);
  const Tensor y(nullptr, DType::kFloat32, {4, 8}, meta),
      wrong(nullptr, DType::kFloat32, {4, 7}, meta);
  EmbeddingForward(Stream::Meta(), ids, table, 0, false, y);
  EmbeddingBackward(Stream::Meta(), ids, y, 0, table);
  EXPECT_DEATH(EmbeddingForward(Stream::Meta(), ids, table, 0, false, wrong), "");
}

}  // namespace
}  // namespace megatron::ops
