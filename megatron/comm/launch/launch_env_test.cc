#include "megatron/comm/launch/launch_env.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

EnvironmentMap operator+(EnvironmentMap a, const EnvironmentMap& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

const EnvironmentMap kExplicit = {{"MEGATRON_RANK", "1"},
                                  {"MEGATRON_WORLD_SIZE", "2"},
                                  {"MEGATRON_LOCAL_RANK", "1"},
                                  {"MEGATRON_LOCAL_WORLD_SIZE", "2"}};
const EnvironmentMap kTorchrun = {
    {"RANK", "5"},       {"WORLD_SIZE", "8"},       {"LOCAL_RANK", "1"},  {"LOCAL_WORLD_SIZE", "4"},
    {"GROUP_RANK", "1"}, {"GROUP_WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1234"}};
const EnvironmentMap kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                                 {"OMPI_COMM_WORLD_SIZE", "4"},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const EnvironmentMap kMpich = {
    {"PMI_RANK", "0"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "3"}};
const EnvironmentMap kSlurm = {{"SLURM_PROCID", "3"},
                               {"SLURM_STEP_ID", "0"},
                               {"SLURM_STEP_NUM_TASKS", "7"},
                               {"SLURM_NTASKS", "7"},
                               {"SLURM_LOCALID", "1"},
                               {"SLURM_NODEID", "1"},
                               {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                               {"SLURM_STEP_NODELIST", "gpu[08-10],login"},
                               {"SLURM_JOB_ID", "1234567"}};

TEST(LaunchEnvTest, ReadsEveryLauncher) {
  const struct {
    EnvironmentMap environment;
    const char* description;
  } kCases[] = {
      {{}, "rank 0 of 1, without a launcher"},
      {{{"RANK", ""}, {"PATH", "/bin"}}, "rank 0 of 1, without a launcher"},
      {kExplicit,
       "rank 1 of 2 (local rank 1 of 2), rendezvous at 127.0.0.1:29500, from the MEGATRON_ "
       "variables"},
      {kTorchrun,
       "rank 5 of 8 (local rank 1 of 4), rendezvous at a:1234, from torchrun's variables"},
      // torchrun's agent listens at the port.
      {kTorchrun + EnvironmentMap{{"TORCHELASTIC_USE_AGENT_STORE", "False"}},
       "rank 5 of 8 (local rank 1 of 4), rendezvous at a:1234, from torchrun's variables"},
      {kTorchrun + EnvironmentMap{{"TORCHELASTIC_USE_AGENT_STORE", "True"}},
       "rank 5 of 8 (local rank 1 of 4), rendezvous at a:26234, from torchrun's variables"},
      {kOpenMpi,
       "rank 2 of 4 (local rank 2 of 4), rendezvous at 127.0.0.1:29500, from Open MPI's variables"},
      {kMpich,
       "rank 0 of 3 (local rank 0 of 3), rendezvous at 127.0.0.1:29500, from PMI's variables"},
      {{{"MV2_COMM_WORLD_RANK", "1"},
        {"MV2_COMM_WORLD_SIZE", "2"},
        {"MV2_COMM_WORLD_LOCAL_RANK", "0"},
        {"MV2_COMM_WORLD_LOCAL_SIZE", "1"},
        {"MASTER_ADDR", "b"}},
       "rank 1 of 2 (local rank 0 of 1), rendezvous at b:29500, from PMI's variables"},
      {kSlurm,
       "rank 3 of 7 (local rank 1 of 2), rendezvous at gpu08:24567, from Slurm's variables"},
      {kSlurm + EnvironmentMap{{"MASTER_ADDR", "c"}, {"MASTER_PORT", "99"}},
       "rank 3 of 7 (local rank 1 of 2), rendezvous at c:99, from Slurm's variables"},
      // A batch script is no task of a step; PMIX_RANK without a size comes with srun too.
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "5"}},
       "rank 0 of 1, without a launcher"},
      {kSlurm + EnvironmentMap{{"PMIX_RANK", "3"}},
       "rank 3 of 7 (local rank 1 of 2), rendezvous at gpu08:24567, from Slurm's variables"},
      // Two that agree.
      {kOpenMpi + EnvironmentMap{{"PMIX_RANK", "2"}, {"PMI_SIZE", "4"}},
       "rank 2 of 4 (local rank 2 of 4), rendezvous at 127.0.0.1:29500, from Open MPI's variables; "
       "PMI's variables are set, too"},
      // Slurm starts an agent of torchrun's on each of two nodes.
      {kTorchrun + kSlurm +
           EnvironmentMap{{"SLURM_PROCID", "1"},
                          {"SLURM_STEP_NUM_TASKS", "2"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}},
       "rank 5 of 8 (local rank 1 of 4), rendezvous at a:1234, from torchrun's variables; Slurm's "
       "variables are set, too"},
      // The user decides.
      {kOpenMpi + kMpich + EnvironmentMap{{"MEGATRON_LAUNCH", "pmi"}},
       "rank 0 of 3 (local rank 0 of 3), rendezvous at 127.0.0.1:29500, from PMI's variables; Open "
       "MPI's variables are set, too"},
      {kOpenMpi + EnvironmentMap{{"MEGATRON_LAUNCH", "single"}},
       "rank 0 of 1, without a launcher; Open MPI's variables are set, too"},
  };
  for (const auto& test_case : kCases) {
    const auto launch = ReadLaunchEnvironment(test_case.environment);
    ASSERT_THAT(launch, IsOk()) << test_case.description;
    EXPECT_EQ(launch->Describe(), test_case.description);
  }
}

TEST(LaunchEnvTest, RefusesContradictoryAndInvalidVariables) {
  const struct {
    EnvironmentMap environment;
    const char* message;
  } kCases[] = {
      {kExplicit + kTorchrun, "explicit says rank 1 of 2 but torchrun says rank 5 of 8"},
      {kOpenMpi + kMpich,
       "openmpi says rank 2 of 4 but pmi says rank 0 of 3; set MEGATRON_LAUNCH=openmpi or =pmi"},
      {kTorchrun + kSlurm, "torchrun says rank 5 of 8 but slurm says rank 3 of 7"},
      {{{"RANK", "3"}}, "WORLD_SIZE is not set"},
      {{{"WORLD_SIZE", "3"}}, "RANK is not set"},
      {{{"RANK", "x"}, {"WORLD_SIZE", "3"}}, "RANK=x"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "3"}}, "RANK=-1"},
      {{{"RANK", "3"}, {"WORLD_SIZE", "3"}}, "rank 3 of 3"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "3"}},
       "0 of 3 on this node, cannot be"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "1"}}, "MASTER_ADDR is not set"},
      {kOpenMpi + EnvironmentMap{{"MASTER_PORT", "0"}}, "MASTER_PORT=0"},
      {kOpenMpi + EnvironmentMap{{"MASTER_PORT", "70000"}}, "MASTER_PORT=70000"},
      {kSlurm + EnvironmentMap{{"SLURM_STEP_NODELIST", "gpu[1-"}}, "SLURM_STEP_NODELIST"},
      {kSlurm + EnvironmentMap{{"SLURM_STEP_TASKS_PER_NODE", "2(3)"}}, "SLURM_STEP_TASKS_PER_NODE"},
      {kSlurm + EnvironmentMap{{"SLURM_NODEID", "4"}}, "has no node 4"},
      {{{"MEGATRON_LAUNCH", "mpi"}},
       "MEGATRON_LAUNCH=mpi is none of explicit, torchrun, openmpi, pmi, slurm, single"},
      {{{"MEGATRON_LAUNCH", "slurm"}}, "SLURM_PROCID is not set"},
  };
  for (const auto& test_case : kCases) {
    EXPECT_THAT(ReadLaunchEnvironment(test_case.environment).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(test_case.message)))
        << test_case.message;
  }
}

TEST(LaunchEnvTest, ExpandsSlurmsLists) {
  EXPECT_THAT(ExpandSlurmNodes("node1"), IsOkAndHolds(ElementsAre("node1")));
  EXPECT_THAT(ExpandSlurmNodes("node[01-03,07],gpu-a,x[9-11]"),
              IsOkAndHolds(ElementsAre("node01", "node02", "node03", "node07", "gpu-a", "x9", "x10",
                                       "x11")));
  EXPECT_THAT(ExpandSlurmNodes("r[1-2]n[08-09]-ib"),
              IsOkAndHolds(ElementsAre("r1n08-ib", "r1n09-ib", "r2n08-ib", "r2n09-ib")));
  for (const char* wrong : {"", ",", "a,", "a[", "a[]", "a]", "a[1-]", "a[2-1]", "a[x]", "a[1,]",
                            "a[1-2-3]", "a[0-100000]", "a[1-999]b[1-999]", "a[-1]", "[1[2]]"}) {
    EXPECT_THAT(ExpandSlurmNodes(wrong), StatusIs(absl::StatusCode::kInvalidArgument)) << wrong;
  }
  EXPECT_THAT(ExpandSlurmNodes("a[0-99999]"), IsOk());
}

TEST(LaunchEnvTest, CountsSlurmsTasks) {
  EXPECT_THAT(SlurmTasksOfNode("4", 0), IsOkAndHolds(4));
  EXPECT_THAT(SlurmTasksOfNode("2(x3),1,5(x2)", 2), IsOkAndHolds(2));
  EXPECT_THAT(SlurmTasksOfNode("2(x3),1,5(x2)", 3), IsOkAndHolds(1));
  EXPECT_THAT(SlurmTasksOfNode("2(x3),1,5(x2)", 5), IsOkAndHolds(5));
  for (const char* wrong : {"", "x", "0", "2(x", "2(x)", "2(x0)", "2(3)", "2(x3", ",2"}) {
    EXPECT_THAT(SlurmTasksOfNode(wrong, 0), StatusIs(absl::StatusCode::kInvalidArgument)) << wrong;
  }
}

TEST(LaunchEnvTest, ReadsThisProcesssEnvironment) {
  setenv("MEGATRON_LAUNCH_ENV_TEST", "a=b", 1);
  EXPECT_EQ(ProcessEnvironment().at("MEGATRON_LAUNCH_ENV_TEST"), "a=b");
}

TEST(LaunchEnvTest, RestartsAreThoseThatTheLauncherCounts) {
  EXPECT_EQ(ReadLaunchEnvironment({})->restarts, 0);
  EXPECT_EQ(ReadLaunchEnvironment({{"SLURM_RESTART_COUNT", "2"}})->restarts, 2);
  const auto launch = ReadLaunchEnvironment({{"MEGATRON_RESTART_COUNT", "3"},
                                             {"MEGATRON_RESTART_REASON", "rank 1 was killed"},
                                             {"TORCHELASTIC_RESTART_COUNT", "0"}});
  ASSERT_THAT(launch, IsOk());
  EXPECT_EQ(launch->restarts, 3);
  EXPECT_EQ(launch->restart_reason, "rank 1 was killed");
  EXPECT_FALSE(launch->launch_time.has_value());
  EXPECT_EQ(ReadLaunchEnvironment({{"MEGATRON_LAUNCH_TIME", "1500"}})->launch_time,
            absl::UnixEpoch() + absl::Milliseconds(1500));
  EXPECT_THAT(ReadLaunchEnvironment({{"MEGATRON_RESTART_COUNT", "often"}}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
