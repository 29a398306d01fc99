#include "megatron/ops/cuda/emulation/tensor_core.h"

#include <cmath>
#include <vector>

#include "cuda_runtime.h"
#include "gtest/gtest.h"

namespace megatron::emulation {
namespace {

struct alignas(kAsyncCopyBytes) Line {
  float values[4];
};

Line* SharedLines() {
  static char key;
  return Shared<Line[3]>(&key);
}

template <typename Kernel>
void RunThread(Kernel kernel) {
  RunGrid(dim3(1), dim3(1), 0, kernel);
}

TEST(AsyncCopyTest, ACopyArrivesWhenItsThreadWaitsForItsGroup) {
  const std::vector<Line> global = {{{1, 2, 3, 4}}, {{5, 6, 7, 8}}, {{9, 10, 11, 12}}};
  std::vector<std::vector<float>> first_after;  // each wait
  RunThread([&] {
    Line* const shared = SharedLines();
    const auto look = [&](int pending) {
      WaitForCopies(pending);
      first_after.push_back(
          {shared[0].values[0], shared[1].values[0], shared[2].values[0], shared[2].values[3]});
    };
    CopyAsync(&shared[0], &global[0], true);
    look(0);  // no group has been committed
    CommitCopies();
    CopyAsync(&shared[1], &global[1], true);
    CopyAsync(&shared[2], &global[2], false);
    CommitCopies();
    look(2);
    look(1);
    look(0);
  });
  ASSERT_EQ(first_after.size(), 4u);
  for (int wait : {0, 1}) EXPECT_TRUE(std::isnan(first_after[wait][0]));
  EXPECT_EQ(first_after[2][0], 1);
  EXPECT_TRUE(std::isnan(first_after[2][1]));
  EXPECT_EQ(first_after[3], std::vector<float>({1, 5, 0, 0}));
}

TEST(AsyncCopyTest, GroupsOfOtherThreadsAreNotWaitedFor) {
  const std::vector<Line> global(2, Line{{1, 1, 1, 1}});
  std::vector<float> seen(2);
  RunGrid(dim3(1), dim3(2), 0, [&] {
    Line* const shared = SharedLines();
    CopyAsync(&shared[threadIdx.x], &global[threadIdx.x], true);
    CommitCopies();
    if (threadIdx.x == 0) WaitForCopies(0);
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i : {0, 1}) seen[i] = shared[i].values[0];
    }
    __syncthreads();
    WaitForCopies(0);
  });
  EXPECT_EQ(seen[0], 1);
  EXPECT_TRUE(std::isnan(seen[1]));
}

TEST(AsyncCopyDeathTest, ABlockThatEndsBeforeItsCopiesIsFound) {
  const Line global = {};
  EXPECT_DEATH(RunThread([&] {
                 CopyAsync(SharedLines(), &global, true);
                 CommitCopies();
               }),
               "ended while its copies");
}

TEST(AsyncCopyDeathTest, AddressesAreAligned) {
  const Line global = {};
  EXPECT_DEATH(RunThread([&] { CopyAsync(&SharedLines()->values[1], &global, true); }), "");
  EXPECT_DEATH(RunThread([&] { CopyAsync(SharedLines(), &global.values[1], true); }), "");
}

}  // namespace
}  // namespace megatron::emulation
