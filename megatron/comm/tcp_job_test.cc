#include "megatron/comm/tcp_job.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/process_group.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

int FreePort() {
  const Socket listener = ListenTcp({"127.0.0.1", 0}).value();
  return LocalEndpoint(listener).value().port;
}

TEST(TcpJobTest, RanksJoinByTheirEnvironment) {
  EnvironmentMap common = {{"WORLD_SIZE", "3"},
                           {"LOCAL_WORLD_SIZE", "3"},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", absl::StrCat(FreePort())},
                           {kJobSecretVariable, JobSecret::Random().ToHex()}};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([common, rank] {
      EnvironmentMap environment = common;
      environment["RANK"] = environment["LOCAL_RANK"] = absl::StrCat(rank);
      const auto launch = ReadLaunchEnvironment(environment);
      ASSERT_THAT(launch, IsOk());
      const auto secret = JobSecretFromEnvironment(environment);
      ASSERT_THAT(secret, IsOk());
      const auto job = TcpJob::Join(*launch, *secret);
      ASSERT_THAT(job, IsOk());
      const ProcessGroup world((*job)->world().communicator());
      EXPECT_EQ(world.size(), 3);
      EXPECT_EQ(world.rank(), rank);
      EXPECT_THAT((*job)->store().Set(absl::StrCat("done", rank), "yes"), IsOk());
      EXPECT_THAT((*job)->store().Get("done1", absl::Seconds(60)), IsOkAndHolds("yes"));
      ThreadPool pool(1);
      world.Barrier(Stream::Cpu(&pool));
      EXPECT_THAT(world.status(), IsOk());
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(TcpJobTest, ASecretIsAskedForByName) {
  EXPECT_THAT(JobSecretFromEnvironment({}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("MEGATRON_JOB_SECRET_FILE")));
  EXPECT_THAT(JobSecretFromEnvironment({{"MEGATRON_JOB_SECRET", "abc"}}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("MEGATRON_JOB_SECRET: ")));
  EXPECT_THAT(JobSecretFromEnvironment({{"MEGATRON_JOB_SECRET_FILE", "/nonexistent"}}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent")));
}

}  // namespace
}  // namespace megatron
