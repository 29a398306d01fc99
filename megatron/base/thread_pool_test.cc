#include "megatron/base/thread_pool.h"

#include <atomic>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(ThreadPoolTest, EveryIndexIsVisitedExactlyOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (int64_t count : {0, 1, 2, 7, 8, 1000}) {
      std::vector<std::atomic<int>> visits(count);
      pool.ParallelFor(count, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++visits[i];
      });
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(visits[i], 1) << threads << " threads, index " << i;
    }
  }
}

TEST(ThreadPoolTest, TheCallerSeesAllWritesOfEveryLoop) {
  ThreadPool pool(4);
  std::vector<int64_t> values(64, 0);
  for (int loop = 0; loop < 5000; ++loop) {
    pool.ParallelFor(values.size(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++values[i];
    });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), int64_t{64} * (loop + 1));
  }
}

TEST(ThreadPoolTest, ANestedLoopRunsInline) {
  ThreadPool pool(2);
  std::atomic<int> visits{0};
  pool.ParallelFor(2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      pool.ParallelFor(10, [&](int64_t b, int64_t e) { visits += static_cast<int>(e - b); });
    }
  });
  EXPECT_EQ(visits, 20);
}

}  // namespace
}  // namespace megatron
