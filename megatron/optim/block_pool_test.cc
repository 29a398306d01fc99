#include "megatron/optim/block_pool.h"

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(BlockPoolTest, TakesTheFirstGapThatIsLargeEnough) {
  MemoryLedger ledger;
  BlockPool pool({}, 1024, "whole", &ledger);
  EXPECT_EQ(ledger.peak_bytes(), 1024);
  PooledTensor a = pool.Allocate(DType::kFloat32, 64), b = pool.Allocate(DType::kBFloat16, 128),
               c = pool.Allocate(DType::kFloat32, 32);
  EXPECT_EQ(a.begin, 0);
  EXPECT_EQ(b.begin, 256);
  EXPECT_EQ(c.begin, 512);
  pool.Free(&b);
  EXPECT_TRUE(b.tensor.empty());
  EXPECT_EQ(pool.Allocate(DType::kFloat32, 65).begin, 640);  // 260 bytes do not fit
  EXPECT_EQ(pool.Allocate(DType::kFloat32, 1).begin, 256);
  pool.Free(&a);
  EXPECT_EQ(pool.Allocate(DType::kFloat32, 64).begin, 0);
  EXPECT_EQ(pool.high_water(), 1024);
}

TEST(BlockPoolTest, APoolOnTheMetaDeviceMeasuresTheSizeOfARealOne) {
  BlockPool measuring({DeviceType::kMeta}, 0, "whole", nullptr);
  for (int round = 0; round < 2; ++round) {
    PooledTensor a = measuring.Allocate(DType::kFloat32, 100);
    PooledTensor b = measuring.Allocate(DType::kFloat32, 50);
    measuring.Free(&a);
    measuring.Free(&b);
    EXPECT_TRUE(measuring.empty());
  }
  EXPECT_EQ(measuring.high_water(), 512 + 256);
}

TEST(BlockPoolTest, FreeingAnEmptyTensorHasNoEffect) {
  BlockPool pool({}, 128, "whole", nullptr);
  PooledTensor none;
  pool.Free(&none);
  EXPECT_TRUE(pool.empty());
}

}  // namespace
}  // namespace megatron
