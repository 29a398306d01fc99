#include "megatron/train/preflight/check_same_run.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::Each;
using ::testing::HasSubstr;

// Returns what each of three processes gets when the last one has other inputs.
std::vector<absl::Status> CheckWith(const std::function<void(RunInputs*)>& change) {
  std::vector<absl::Status> results(3);
  const absl::Status status = RunRanks(3, [&](int rank, const ProcessGroup& processes) {
    RunInputs inputs;
    inputs.config.mutable_train()->set_seed(1);
    inputs.config.mutable_system()->set_num_threads(rank + 1);
    inputs.data_fingerprint = "data";
    inputs.instruction_set = "avx512";
    if (rank == 2) change(&inputs);
    results[rank] = CheckSameRun(inputs, processes);
    return absl::OkStatus();
  });
  EXPECT_THAT(status, IsOk());
  return results;
}

TEST(CheckSameRunTest, MachinesMayDiffer) {
  EXPECT_THAT(CheckWith([](RunInputs*) {}), Each(IsOk()));
}

TEST(CheckSameRunTest, TheProcessWithAnotherConfigurationSaysWhatDiffers) {
  const auto results =
      CheckWith([](RunInputs* inputs) { inputs->config.mutable_train()->set_seed(7); });
  EXPECT_THAT(results[0], IsOk());
  EXPECT_THAT(results[1], IsOk());
  EXPECT_EQ(ExitCodeOf(results[2]), kExitConfig);
  EXPECT_THAT(std::string(results[2].message()), HasSubstr("seed"));
  EXPECT_EQ(ExitCodeOf(CheckWith([](RunInputs* i) { i->data_fingerprint = "other"; })[2]),
            kExitConfig);
}

TEST(CheckSameRunTest, OtherOrdersPlansKernelsAndCheckpointsAreRefusedByAll) {
  for (const absl::Status& status : CheckWith([](RunInputs* i) { i->gemm_plans = "plan"; }))
    EXPECT_EQ(ExitCodeOf(status), kExitConfig);
  for (const absl::Status& status : CheckWith([](RunInputs* i) { i->rank_order = "pp-dp"; })) {
    EXPECT_EQ(ExitCodeOf(status), kExitConfig);
    EXPECT_THAT(std::string(status.message()), HasSubstr("parallel.topology_file"));
  }
  for (const absl::Status& status : CheckWith([](RunInputs* i) { i->attention = "flash, local"; }))
    EXPECT_EQ(ExitCodeOf(status), kExitConfig);
  for (const absl::Status& status : CheckWith([](RunInputs* i) { i->checkpoint = "iter_1"; }))
    EXPECT_EQ(ExitCodeOf(status), kExitCorruptCheckpoint);
}

TEST(CheckSameRunTest, TheProcessWithAnotherInstructionSetNamesBoth) {
  const auto results = CheckWith([](RunInputs* inputs) { inputs->instruction_set = "avx2"; });
  EXPECT_THAT(results[0], IsOk());
  EXPECT_THAT(results[1], IsOk());
  EXPECT_EQ(ExitCodeOf(results[2]), kExitConfig);
  EXPECT_THAT(std::string(results[2].message()),
              HasSubstr("computes with avx2, and rank 0 with avx512"));
}

}  // namespace
}  // namespace megatron
