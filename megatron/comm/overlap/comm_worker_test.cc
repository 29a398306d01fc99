#include "megatron/comm/overlap/comm_worker.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(CommWorkerTest, RunsJobsInTheOrderGiven) {
  std::vector<int> done;
  CommWorker worker(Stream::Inline(), "lane");
  int64_t last = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 4; ++i)
      last = worker.Add([&, number = 4 * round + i](const Stream&) { done.push_back(number); });
    if (round % 3 == 0) worker.Wait(last - 1);
  }
  worker.Wait(last);
  ASSERT_EQ(done.size(), 200u);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(done[i], i);
  EXPECT_EQ(last, 200);
}

TEST(CommWorkerTest, TheDestructorRunsAllJobs) {
  int done = 0;
  {
    CommWorker worker(Stream::Inline(), "lane");
    for (int i = 0; i < 10; ++i) worker.Add([&](const Stream&) { ++done; });
  }
  EXPECT_EQ(done, 10);
}

TEST(CommWorkerTest, WaitingForJobZeroReturnsAtOnce) {
  CommWorker worker(Stream::Inline(), "lane");
  worker.Wait(0);
}

}  // namespace
}  // namespace megatron
