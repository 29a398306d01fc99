#include "megatron/optim/comm_worker.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(CommWorkerTest, DoesJobsInTheOrderGiven) {
  std::vector<int> done;
  CommWorker worker([&](const CommWorker::Job& job) { done.push_back(job.bucket_group); });
  int64_t last = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 4; ++i) last = worker.Add({0, 4 * round + i});
    if (round % 3 == 0) worker.Wait(last - 1);
  }
  worker.Wait(last);
  ASSERT_EQ(done.size(), 200u);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(done[i], i);
  EXPECT_EQ(last, 200);
}

TEST(CommWorkerTest, ItsEndWaitsForAllJobs) {
  int done = 0;
  {
    CommWorker worker([&](const CommWorker::Job&) { ++done; });
    for (int i = 0; i < 10; ++i) worker.Add({});
  }
  EXPECT_EQ(done, 10);
}

TEST(CommWorkerTest, JobZeroIsDone) {
  CommWorker worker([](const CommWorker::Job&) {});
  worker.Wait(0);
}

}  // namespace
}  // namespace megatron
