#include "megatron/ops/cuda/emulation/block.h"

#include <set>
#include <vector>

#include "cuda_runtime.h"
#include "gtest/gtest.h"

namespace megatron::emulation {
namespace {

template <typename Kernel>
void RunOn(dim3 grid, unsigned threads, Kernel kernel) {
  RunGrid(grid, dim3(threads), 64, kernel);
}

TEST(BlockTest, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> count(3 * 2 * 70);
  RunOn(dim3(3, 2), 70,
        [&] { ++count[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x]; });
  EXPECT_EQ(count, std::vector<int>(count.size(), 1));
}

TEST(BlockTest, SyncthreadsSeparatesWhatIsBeforeFromWhatIsAfter) {
  std::vector<int> values(100), sums(100);
  RunOn(dim3(1), 100, [&] {
    for (int round = 1; round <= 3; ++round) {
      values[threadIdx.x] = round;
      __syncthreads();
      int sum = 0;
      for (int value : values) sum += value;
      sums[threadIdx.x] += sum == 100 * round;
      __syncthreads();
    }
  });
  EXPECT_EQ(sums, std::vector<int>(100, 3));
}

TEST(BlockTest, ThreadsThatReturnedAreNotWaitedFor) {
  int arrived = 0;
  RunOn(dim3(1), 64, [&] {
    if (threadIdx.x >= 40) return;
    __syncthreads();
    ++arrived;
  });
  EXPECT_EQ(arrived, 40);
}

TEST(BlockTest, ShufflesTakeWhatTheLaneGave) {
  std::vector<int> got(64), exchanged(64);
  RunOn(dim3(1), 64, [&] {
    const int mine = static_cast<int>(threadIdx.x);
    got[threadIdx.x] = __shfl_sync(~0u, mine, 5);
    exchanged[threadIdx.x] = __shfl_xor_sync(~0u, mine, 3);
  });
  for (int t = 0; t < 64; ++t) {
    EXPECT_EQ(got[t], t / 32 * 32 + 5);
    EXPECT_EQ(exchanged[t], t ^ 3);
  }
}

// So a warp whose lanes wait for each other alone does not happen to wait for the block, too.
TEST(BlockTest, AWarpRunsAheadOfOthersToTheNextBarrierOfTheBlock) {
  int arrived = 0;
  std::set<int> seen;
  RunOn(dim3(1), 64, [&] {
    ++arrived;
    __syncwarp();
    seen.insert(arrived);
    __syncthreads();
    EXPECT_EQ(arrived, 64);
  });
  EXPECT_EQ(seen, std::set<int>({32, 64}));
}

// What a kernel without its __syncthreads computes depends on the order of its threads: that it
// changes from launch to launch is how such a kernel is found.
TEST(BlockTest, TheOrderOfThreadsDiffersFromLaunchToLaunch) {
  std::set<std::vector<unsigned>> orders;
  for (int launch = 0; launch < 5; ++launch) {
    std::vector<unsigned> order;
    RunOn(dim3(1), 32, [&] { order.push_back(threadIdx.x); });
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 3u);
}

TEST(BlockDeathTest, ThreadsThatWaitAtDifferentPlacesAreFound) {
  EXPECT_DEATH(RunOn(dim3(1), 64,
                     [&] {
                       if (threadIdx.x < 32) {
                         __syncthreads();
                       } else if (threadIdx.x == 32) {
                         __syncwarp();
                       } else {
                         __syncthreads();
                       }
                     }),
               "wait at different places");
}

}  // namespace
}  // namespace megatron::emulation
