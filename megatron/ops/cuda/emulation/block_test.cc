#include "megatron/ops/cuda/emulation/block.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "cuda_runtime.h"
#include "gtest/gtest.h"
#include "megatron/ops/cuda/emulation/sanitizers.h"

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
  std::atomic<int> arrived{0};
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

// A warp whose lanes wait for each other does not wait for the whole block, too.
TEST(BlockTest, AWarpRunsAheadOfOthersToTheNextBarrierOfTheBlock) {
  std::atomic<int> arrived{0};
  std::vector<int> seen(64), in_the_end(64);
  RunOn(dim3(1), 64, [&] {
    ++arrived;
    __syncwarp();
    seen[threadIdx.x] = arrived;
    __syncthreads();
    in_the_end[threadIdx.x] = arrived;
  });
  EXPECT_EQ(std::set<int>(seen.begin(), seen.end()), std::set<int>({32, 64}));
  EXPECT_EQ(in_the_end, std::vector<int>(64, 64));
}

// The result of a kernel that lacks a __syncthreads depends on the order of its threads. The order
// changes from launch to launch, so that such a kernel is found.
TEST(BlockTest, TheOrderOfThreadsDiffersFromLaunchToLaunch) {
  std::set<std::vector<unsigned>> orders;
  for (int launch = 0; launch < 5; ++launch) {
    std::vector<unsigned> order(32);
    std::atomic<unsigned> next{0};
    RunOn(dim3(1), 32, [&] { order[next++] = threadIdx.x; });
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 3u);
}

TEST(BlockTest, TheOrderOfBlocksDiffersFromLaunchToLaunch) {
  std::set<std::vector<unsigned>> orders;
  for (int launch = 0; launch < 5; ++launch) {
    std::vector<unsigned> order(32);
    std::atomic<unsigned> next{0};
    RunOn(dim3(32), 1, [&] { order[next++] = blockIdx.x; });
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 3u);
}

TEST(BlockTest, SharedMemoryIsTheBlocksOwnAndNaNAtFirst) {
  std::vector<float> at_first(10), in_the_end(10);
  RunOn(dim3(10), 33, [&] {
    static char key;
    float& shared = Shared<float>(&key);
    if (threadIdx.x == 0) at_first[blockIdx.x] = shared;
    __syncthreads();
    if (threadIdx.x == 32) shared = static_cast<float>(blockIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) in_the_end[blockIdx.x] = shared;
  });
  for (int block = 0; block < 10; ++block) {
    EXPECT_TRUE(std::isnan(at_first[block]));
    EXPECT_EQ(in_the_end[block], static_cast<float>(block));
  }
}

TEST(BlockTest, SharedMemoryIsAlignedToWhatWasAskedForAndNoMore) {
  for (size_t alignment : {8, 16, 128}) {
    std::vector<uintptr_t> address(2);
    RunOn(dim3(1), 1, [&] {
      address[0] = reinterpret_cast<uintptr_t>(DynamicShared(alignment));
      static char key;
      address[1] = reinterpret_cast<uintptr_t>(StaticShared(&key, 5, alignment));
    });
    for (uintptr_t at : address) EXPECT_EQ(at % (2 * alignment), alignment);
    EXPECT_NE(address[0], address[1]);
  }
}

template <int kName>
void WantsShared() {
  DynamicShared();
  static char key;
  Shared<float>(&key);
}

template <int kName>
void LaunchWith(size_t shared_bytes) {
  Launch(Address(WantsShared<kName>), WantsShared<kName>, dim3(1), dim3(32), shared_bytes,
         nullptr)();
}

TEST(BlockTest, AKernelMayAskForAsMuchSharedMemoryAsADeviceHas) {
  EXPECT_FALSE(AllowShared(Address(WantsShared<0>), 227 * 1024 + 1));
  ASSERT_TRUE(AllowShared(Address(WantsShared<0>), 227 * 1024));
  LaunchWith<0>(227 * 1024 - sizeof(float));
}

TEST(BlockDeathTest, MoreSharedMemoryThanAskedForIsRefused) {
  EXPECT_DEATH(LaunchWith<1>(48 * 1024 + 1), "without cudaFuncSetAttribute");
}

TEST(BlockDeathTest, StaticAndDynamicSharedMemoryHaveOneLimit) {
  LaunchWith<2>(48 * 1024 - sizeof(float));
  EXPECT_DEATH(LaunchWith<2>(48 * 1024), "static and dynamic");
}

TEST(BlockDeathTest, AValueOfALaneThatHasReturnedIsNone) {
  EXPECT_DEATH(RunOn(dim3(1), 32,
                     [] {
                       if (threadIdx.x == 3) return;
                       __shfl_sync(~0u, 1, 3);
                     }),
               "lane 3 takes no part");
}

TEST(BlockDeathTest, InstructionsOfAWholeWarpWantAllItsLanes) {
  EXPECT_DEATH(RunOn(dim3(1), 32,
                     [] {
                       if (threadIdx.x == 3) return;
                       WarpRegisters(1, /*whole_warp=*/true);
                     }),
               "in one of 31 lanes");
}

TEST(BlockDeathTest, LanesThatWaitAtDifferentCallsAreFound) {
  EXPECT_DEATH(RunOn(dim3(1), 32,
                     [] {
                       if (threadIdx.x < 16) {
                         __syncwarp();
                       } else {
                         __shfl_sync(~0u, 1, 20);
                       }
                     }),
               "at different calls");
}

// This needs a build with AddressSanitizer.
TEST(BlockDeathTest, SharedMemoryEndsWhereItEnds) {
  if (!BoundsAreChecked()) GTEST_SKIP() << "built without AddressSanitizer";
  for (int at : {-1, 5}) {
    for (bool writes : {false, true}) {
      EXPECT_DEATH(RunOn(dim3(1), 1,
                         [&] {
                           static char key;
                           volatile auto* const shared = Shared<int16_t[5]>(&key);
                           if (writes) {
                             shared[at] = 1;
                           } else {
                             static_cast<void>(shared[at]);
                           }
                         }),
                   "AddressSanitizer");
    }
  }
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
