// Tests that ThreadSanitizer reports a kernel with a race, and not the same kernel without. The
// test is always built with ThreadSanitizer: bazel test //megatron/ops/cuda/emulation:race_test
#include <cstdlib>
#include <vector>

#include "cuda_runtime.h"
#include "gtest/gtest.h"
#include "megatron/ops/cuda/emulation/block.h"
#include "megatron/ops/cuda/emulation/sanitizers.h"
#include "megatron/ops/cuda/emulation/tensor_core.h"

// ThreadSanitizer waits for other threads' reports before it ends a process; there are none.
extern "C" const char* __tsan_default_options() { return "atexit_sleep_ms=0"; }

namespace megatron::emulation {
namespace {

constexpr unsigned kThreads = 64;

// Runs the function in a child process, which ends afterwards.
template <typename Kernel>
void ExpectRaces(bool races, unsigned blocks, Kernel kernel) {
  ASSERT_TRUE(RacesAreFound());
  const auto run = [&] {
    RunGrid(dim3(blocks), dim3(kThreads), 0, kernel);
    std::exit(0);
  };
  constexpr int kExitOfThreadSanitizer = 66;
  if (races) {
    EXPECT_EXIT(run(), ::testing::ExitedWithCode(kExitOfThreadSanitizer), "data race");
  } else {
    EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
  }
}

int* SharedInts() {
  static char key;
  return Shared<int[kThreads]>(&key);
}

TEST(RaceDeathTest, ReadingAnotherThreadsWriteWithoutABarrierIsReported) {
  for (bool waits : {false, true}) {
    std::vector<int> out(kThreads);
    ExpectRaces(!waits, 1, [&] {
      int* const shared = SharedInts();
      shared[threadIdx.x] = 1;
      if (waits) __syncthreads();
      out[threadIdx.x] = shared[(threadIdx.x + kThreads / 2) % kThreads];
    });
  }
}

TEST(RaceDeathTest, WritingWhatAnotherThreadStillReadsIsReported) {
  for (bool waits : {false, true}) {
    std::vector<int> out(kThreads);
    ExpectRaces(!waits, 1, [&] {
      int* const shared = SharedInts();
      for (int round = 0; round < 3; ++round) {
        shared[threadIdx.x] = round;
        __syncthreads();
        out[threadIdx.x] += shared[kThreads - 1 - threadIdx.x];
        if (waits) __syncthreads();
      }
    });
  }
}

TEST(RaceDeathTest, TwoBlocksThatAddToOnePlaceAreReported) {
  for (bool same : {false, true}) {
    std::vector<float> sums(2);
    ExpectRaces(same, 2, [&] {
      if (threadIdx.x == 0) sums[same ? 0 : blockIdx.x] += 1;
    });
  }
}

// A barrier orders only the threads of its block.
TEST(RaceDeathTest, BarriersOfTwoBlocksDoNotOrderThem) {
  std::vector<int> out(kThreads);
  ExpectRaces(true, 2, [&] {
    __syncthreads();
    if (blockIdx.x == 0) out[threadIdx.x] = 1;
    __syncthreads();
    if (blockIdx.x == 1) out[kThreads - 1 - threadIdx.x] = 1;
    __syncthreads();
  });
}

TEST(RaceDeathTest, LanesThatExchangeThroughMemoryAreReported) {
  for (bool waits : {false, true}) {
    std::vector<int> out(kThreads);
    ExpectRaces(!waits, 1, [&] {
      int* const shared = SharedInts();
      shared[threadIdx.x] = 1;
      if (waits) __syncwarp();
      out[threadIdx.x] = shared[threadIdx.x ^ 1];
    });
  }
}

TEST(RaceDeathTest, WarpBarriersDoNotOrderTwoWarps) {
  std::vector<int> out(kThreads);
  ExpectRaces(true, 1, [&] {
    int* const shared = SharedInts();
    shared[threadIdx.x] = 1;
    __syncwarp();
    out[threadIdx.x] = shared[threadIdx.x ^ kWarpSize];
  });
}

// "They do not imply a memory barrier" (CUDA C++ Programming Guide, "Warp Shuffle Functions").
TEST(RaceDeathTest, AShuffleOrdersNothing) {
  std::vector<int> out(kThreads);
  ExpectRaces(true, 1, [&] {
    int* const shared = SharedInts();
    shared[threadIdx.x] = 1;
    const int one = __shfl_xor_sync(~0u, 1, 1);
    out[threadIdx.x] = one + shared[threadIdx.x ^ 1];
  });
}

TEST(RaceDeathTest, BlocksThatReuseSharedMemoryAreNotReported) {
  std::vector<int> out(8 * kThreads);
  ExpectRaces(false, 8, [&] {
    int* const shared = SharedInts();
    shared[threadIdx.x] = static_cast<int>(blockIdx.x);
    __syncthreads();
    out[blockIdx.x * kThreads + threadIdx.x] = shared[kThreads - 1 - threadIdx.x];
  });
}

TEST(RaceDeathTest, ShuffledValuesAreNotReported) {
  std::vector<float> sums(4);
  ExpectRaces(false, 4, [&] {
    float sum = 1;
    for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  });
}

// A thread that waits for its own copies does not wait for those of others.
TEST(RaceDeathTest, ReadingAnotherThreadsCopyIsReported) {
  struct alignas(kAsyncCopyBytes) Line {
    int values[4];
  };
  const std::vector<Line> global(kThreads);
  for (bool waits : {false, true}) {
    std::vector<int> out(kThreads);
    ExpectRaces(!waits, 1, [&] {
      static char key;
      Line* const shared = Shared<Line[kThreads]>(&key);
      CopyAsync(&shared[threadIdx.x], &global[threadIdx.x], true);
      CommitCopies();
      WaitForCopies(0);
      if (waits) __syncthreads();
      out[threadIdx.x] = shared[kThreads - 1 - threadIdx.x].values[0];
    });
  }
}

// A copy may arrive as soon as it is issued.
TEST(RaceDeathTest, ACopyToWhatAnotherThreadStillReadsIsReported) {
  struct alignas(kAsyncCopyBytes) Line {
    int values[4];
  };
  const std::vector<Line> global(kThreads);
  for (bool waits : {false, true}) {
    std::vector<int> out(kThreads);
    ExpectRaces(!waits, 1, [&] {
      static char key;
      Line* const shared = Shared<Line[kThreads]>(&key);
      out[threadIdx.x] = shared[kThreads - 1 - threadIdx.x].values[0];
      if (waits) __syncthreads();
      CopyAsync(&shared[threadIdx.x], &global[threadIdx.x], true);
      CommitCopies();
      __syncthreads();
      WaitForCopies(0);
    });
  }
}

// Each launch happens after those before it, and the host's later work after all of them.
TEST(RaceDeathTest, LaunchesAreOrdered) {
  std::vector<int> values(4 * kThreads);
  const auto run = [&] {
    for (int launch = 0; launch < 3; ++launch) {
      RunGrid(dim3(4), dim3(kThreads), 0, [&] {
        // Each time, a different thread of a different block writes.
        const unsigned i = blockIdx.x * kThreads + threadIdx.x;
        ++values[(i * 5 + static_cast<unsigned>(launch)) % values.size()];
      });
      for (int& value : values) ++value;
    }
    std::exit(values[0] == 6 ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace megatron::emulation
