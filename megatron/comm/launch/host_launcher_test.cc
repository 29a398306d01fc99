#include "megatron/comm/launch/host_launcher.h"

#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/comm/launch/launcher.h"
#include "megatron/comm/socket/job_secret.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::Pair;

AgentJob JobOf(int first_rank, int ranks, int world_size) {
  AgentJob agent;
  agent.directory = "/work";
  agent.launch.ranks = ranks;
  agent.launch.command = {"program", "argument"};
  agent.launch.environment = {{"NAME", "value"}};
  agent.launch.job = JobPlace{first_rank, world_size, "gpu-1", 29500, JobSecret::Random()};
  return agent;
}

TEST(AgentJobTest, IsReadAsItIsWritten) {
  const AgentJob sent = JobOf(4, 4, 8);
  const absl::StatusOr<AgentJob> read = AgentJob::Decode(sent.Encode());
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->directory, "/work");
  EXPECT_EQ(read->launch.ranks, 4);
  EXPECT_THAT(read->launch.command, ElementsAre("program", "argument"));
  EXPECT_THAT(read->launch.environment, ElementsAre(Pair("NAME", "value")));
  ASSERT_TRUE(read->launch.job.has_value());
  EXPECT_EQ(read->launch.job->first_rank, 4);
  EXPECT_EQ(read->launch.job->world_size, 8);
  EXPECT_EQ(read->launch.job->master_addr, "gpu-1");
  EXPECT_EQ(read->launch.job->master_port, 29500);
  EXPECT_EQ(read->launch.job->secret.bytes(), sent.launch.job->secret.bytes());
}

TEST(AgentJobTest, RanksThatAreNotOfTheWorldAreRefused) {
  constexpr int kLeast = std::numeric_limits<int>::min(), kMost = std::numeric_limits<int>::max();
  for (const AgentJob& job :
       {JobOf(5, 4, 8), JobOf(-1, 1, 8), JobOf(0, 0, 8), JobOf(0, 1, kLeast), JobOf(kMost, 1, 8)}) {
    EXPECT_THAT(AgentJob::Decode(job.Encode()), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(AgentJobTest, WhatIsCutOffIsRefused) {
  const std::string whole = JobOf(0, 2, 2).Encode();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(AgentJob::Decode(absl::string_view(whole).substr(0, size)),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << size;
  }
}

}  // namespace
}  // namespace megatron
