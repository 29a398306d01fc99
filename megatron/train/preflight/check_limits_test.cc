#include "megatron/train/preflight/check_limits.h"

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// Two pipeline stages of two ranks each, of which those of the first take 3 KiB and those of the
// second 1 KiB, partly in host memory.
RunPlan TwoStages() {
  RunPlan plan;
  plan.stages.resize(2);
  plan.stages[0].memory["weights"] = 2048;
  plan.stages[0].host_memory["exp_avg"] = 1024;
  plan.stages[0].ranks = {0, 1};
  plan.stages[1].memory["weights"] = 1024;
  plan.stages[1].ranks = {2, 3};
  plan.ranks_per_stage = 2;
  plan.program_bytes = int64_t{1} << 40;  // is there already
  return plan;
}

// Two ranks of each stage share the machine.
constexpr int kRanksHere = 4;

absl::Status Check(const ProcessLimits& limits, const RunOptions& options, const RunPlan& plan,
                   std::optional<int> rank = std::nullopt) {
  return CheckLimits(limits, options, plan, kRanksHere, rank);
}

// Returns the least addresses with which a process is not refused.
int64_t LeastAddresses(const RunOptions& options, const RunPlan& plan,
                       std::optional<int> rank = std::nullopt, int64_t stack_bytes = 0,
                       int64_t running = 1) {
  ProcessLimits limits;
  limits.stack_bytes = stack_bytes;
  limits.threads = running;
  int64_t least = 0;
  for (int64_t step = int64_t{1} << 50; step > 0; step /= 2) {
    limits.address_bytes = least + step - 1;
    if (!Check(limits, options, plan, rank).ok()) least += step;
  }
  return least;
}

// Returns the number of stacks for which a process needs addresses.
int64_t Threads(const RunOptions& options, const RunPlan& plan,
                std::optional<int> rank = std::nullopt) {
  constexpr int64_t kStack = int64_t{8} << 20;
  return (LeastAddresses(options, plan, rank, kStack) - LeastAddresses(options, plan, rank)) /
         kStack;
}

TEST(CheckLimitsTest, AProcessNeedsAddressesForItsRanks) {
  const RunPlan plan = TwoStages();
  RunPlan nothing = plan;
  nothing.stages[0].memory.clear();
  nothing.stages[0].host_memory.clear();
  nothing.stages[1].memory.clear();
  RunOptions options;
  EXPECT_THAT(Check({}, options, plan), IsOk());
  // All ranks are threads.
  const auto planned = [&](std::optional<int> rank = std::nullopt) {
    return LeastAddresses(options, plan, rank) - LeastAddresses(options, nothing, rank);
  };
  EXPECT_EQ(planned(), 8192);
  // Each is a process.
  options.ranks.processes = true;
  EXPECT_EQ(planned(), 3072);
  EXPECT_EQ(planned(/*rank=*/2), 1024);
  EXPECT_EQ(planned(/*rank=*/1), 3072);
  // On GPUs it is host memory alone.
  options.device = DeviceType::kCuda;
  EXPECT_EQ(planned(/*rank=*/1), 1024);
  EXPECT_EQ(planned(/*rank=*/2), 0);
}

TEST(CheckLimitsTest, TheMessageHasWhatTakesAddresses) {
  RunPlan plan = TwoStages();
  plan.data_bytes = int64_t{1} << 40;
  ProcessLimits limits;
  limits.address_bytes = 4096;
  limits.stack_bytes = int64_t{1} << 20;
  EXPECT_THAT(Check(limits, RunOptions(), plan),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("allocates up to 2.00 TiB: 1.00 TiB for what is planned, "
                                       "6.00 MiB for the stacks of 6 threads, "),
                             HasSubstr("(ulimit -v) leaves 4.00 KiB; raise the limit"))));
}

TEST(CheckLimitsTest, EveryThreadNeedsAddressesForItsStack) {
  RunPlan plan = TwoStages();
  RunOptions options;
  // The main thread, the one that watches, and one for each rank.
  EXPECT_EQ(Threads(options, plan), 6);
  options.ranks.processes = true;
  const int64_t one = Threads(options, plan);
  EXPECT_EQ(one, Threads(options, plan, /*rank=*/3));
  const auto expect_more = [&](int64_t more) {
    EXPECT_EQ(Threads(options, plan, /*rank=*/0), one + more);
  };
  options.num_threads = 8 * kRanksHere;  // of which each rank has its share
  expect_more(7);
  options.num_threads = 1;
  plan.stages[0].lanes = 3;
  expect_more(3);
  EXPECT_EQ(Threads(options, plan, /*rank=*/3), one);
  plan.stages[0].lanes = 0;
  plan.stages[0].file_bytes = 1;
  expect_more(32);
  plan.stages[0].file_bytes = 0;
  options.trainer.packing.num_workers = 2;  // for the samples of each of three parts
  expect_more(6);
  options.trainer.packing.num_workers = 0;
  options.checkpoint.save = "/saved";
  expect_more(0);
  options.checkpoint.async_save = true;
  expect_more(1);
  options.loop.on_event = "true";
  expect_more(2);
}

TEST(CheckLimitsTest, StacksOfThreadsThatRunAreInUse) {
  constexpr int64_t kStack = 1 << 20;
  const RunPlan plan = TwoStages();
  RunOptions options;
  options.ranks.processes = true;
  const auto least = [&](int64_t running) {
    return LeastAddresses(options, plan, /*rank=*/0, kStack, running);
  };
  EXPECT_EQ(least(5), least(1) - 4 * kStack);
  // A process has five besides its first one and its rank's.
  EXPECT_EQ(least(6), least(1) - 5 * kStack);
  EXPECT_EQ(least(60), least(6));
}

TEST(CheckLimitsTest, TheProcessThatStartsRanksAllowsForWhatTheyHaveInUseWhenAsked) {
  const RunPlan plan = TwoStages();
  RunOptions options;
  options.ranks.processes = true;
  EXPECT_EQ(LeastAddresses(options, plan) - LeastAddresses(options, plan, /*rank=*/0),
            (int64_t{8} << 20) + 3 * (int64_t{128} << 10));
}

TEST(CheckLimitsTest, BlocksOfLargePagesAndWorkspacesNeedAddresses) {
  constexpr int64_t kMebibyte = 1 << 20;
  RunPlan plan = TwoStages();
  RunOptions options;
  options.ranks.processes = true;
  const int64_t before = LeastAddresses(options, plan, /*rank=*/0);
  // A block begins at a multiple of 2 MiB, and each micro-batch in flight has one.
  plan.stages[0].memory["weights"] += 4 * kMebibyte;
  EXPECT_EQ(LeastAddresses(options, plan, /*rank=*/0), before + 6 * kMebibyte);
  plan.stages[0].sizes.slots = {{3, 4 * kMebibyte, 0}};
  EXPECT_EQ(LeastAddresses(options, plan, /*rank=*/0), before + 12 * kMebibyte);
  // A pool's threads have workspaces of up to 5 MiB.
  options.num_threads = 2 * kRanksHere;
  EXPECT_EQ(LeastAddresses(options, plan, /*rank=*/0), before + 19 * kMebibyte);
}

TEST(CheckLimitsTest, EachFileHasToBeAllowedItsLength) {
  RunPlan plan = TwoStages();
  plan.stages[0].file_bytes = 1024;
  plan.stages[1].weight_file_bytes = 2048;
  plan.stages[1].shard_bytes = 4096;
  RunOptions options;
  options.ranks.processes = true;
  options.trainer.state_directory = "/states";
  options.trainer.weight_directory = "/weights";
  options.checkpoint.save = "/saved";
  ProcessLimits limits;
  limits.file_bytes = 4096;
  EXPECT_THAT(Check(limits, options, plan), IsOk());
  limits.file_bytes = 4095;
  EXPECT_THAT(Check(limits, options, plan),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("checkpoint.save: a rank's shard of a checkpoint in "
                                       "'/saved' has 4.00 KiB"),
                             HasSubstr("(ulimit -f)"))));
  // Those of other ranks are others' matter, and only the first of a stage is known to have it all.
  EXPECT_THAT(Check(limits, options, plan, /*rank=*/0), IsOk());
  EXPECT_THAT(Check(limits, options, plan, /*rank=*/2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'/saved'")));
  EXPECT_THAT(Check(limits, options, plan, /*rank=*/3), IsOk());
  limits.file_bytes = 2047;
  EXPECT_THAT(Check(limits, options, plan, /*rank=*/3),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("parallel.param_offload_path: a rank's file of weights in "
                                 "'/weights' has 2.00 KiB")));
  limits.file_bytes = 1000;
  EXPECT_THAT(Check(limits, options, plan, /*rank=*/0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("optimizer.optimizer_offload_path"), HasSubstr("'/states'"),
                             HasSubstr("more than 1000 B"))));
}

TEST(CheckLimitsTest, EachRankHasConnectionsToEveryOtherAndOtherFiles) {
  ProcessLimits limits;
  EXPECT_THAT(CheckOpenFiles(limits, 100000), IsOk());
  limits.open_files = 3 * 7 + 32;
  EXPECT_THAT(CheckOpenFiles(limits, 1), IsOk());
  EXPECT_THAT(CheckOpenFiles(limits, 8), IsOk());
  EXPECT_THAT(CheckOpenFiles(limits, 9),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("9 ranks"), HasSubstr("up to 56 files"),
                             HasSubstr("(ulimit -n) leaves 53"))));
}

TEST(CheckLimitsTest, AProcessWithAllRanksOpensFilesForEach) {
  const RunPlan plan = TwoStages();
  RunOptions options;
  ProcessLimits limits;
  limits.open_files = 32;
  EXPECT_THAT(Check(limits, options, plan), IsOk());
  options.checkpoint.save = "/saved";
  options.trainer.state_directory = "/states";
  EXPECT_THAT(Check(limits, options, plan),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the process of 4 ranks opens up to 41 files and connections, and "
                                 "the limit of open files (ulimit -n) leaves 32; raise the limit, "
                                 "or start fewer ranks")));
  limits.open_files = 41;
  EXPECT_THAT(Check(limits, options, plan), IsOk());
  RunPlan alone;
  alone.stages.resize(1);
  alone.stages[0].ranks = {0};
  limits.open_files = 32;
  EXPECT_THAT(CheckLimits(limits, options, alone, 1, std::nullopt), IsOk());
  limits.open_files = 31;
  EXPECT_THAT(CheckLimits(limits, options, alone, 1, std::nullopt),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("the process opens up to 32 files"),
                             EndsWith("leaves 31; raise the limit"))));
}

TEST(CheckLimitsTest, TheProcessThatStartsRanksHasPipesOfEach) {
  const RunPlan plan = TwoStages();
  RunOptions options;
  options.ranks.processes = true;
  ProcessLimits limits;
  // A rank has connections to three others.
  limits.open_files = 3 * 3 + 32;
  EXPECT_THAT(Check(limits, options, plan), IsOk());
  --*limits.open_files;
  EXPECT_THAT(Check(limits, options, plan),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("each of 4 ranks"), HasSubstr("up to 41 files"))));
  // A rank does not check it again.
  EXPECT_THAT(Check(limits, options, plan, /*rank=*/1), IsOk());
  // The store's connections.
  limits.open_files = 3 * kRanksHere + 32;
  options.ranks.in_process_recovery = true;
  EXPECT_THAT(Check(limits, options, plan), IsOk());
  --*limits.open_files;
  EXPECT_THAT(Check(limits, options, plan),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the process that starts 4 ranks opens up to 44 files")));
}

// Puts a limit back when it ends.
template <typename Resource>
class Limited {
 public:
  Limited(Resource resource, rlim_t limit) : resource_(resource) {
    EXPECT_EQ(getrlimit(resource, &before_), 0);
    rlimit during = before_;
    during.rlim_cur = limit;
    EXPECT_EQ(setrlimit(resource, &during), 0);
  }
  Limited(const Limited&) = delete;
  Limited& operator=(const Limited&) = delete;
  ~Limited() { EXPECT_EQ(setrlimit(resource_, &before_), 0); }

 private:
  const Resource resource_;
  rlimit before_;
};

TEST(ProcessLimitsTest, AreThoseOfTheSystemWithoutWhatIsUsed) {
  rlimit addresses;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &addresses), 0);
  if (addresses.rlim_cur == RLIM_INFINITY) {
    EXPECT_EQ(LimitsOfThisProcess().address_bytes, std::nullopt);
  }
  ProcessLimits limits;
  {
    // More than any process of the system may have.
    const Limited most_addresses(RLIMIT_AS, rlim_t{1} << 60);
    const Limited longest(RLIMIT_FSIZE, 123456);
    const Limited most_files(RLIMIT_NOFILE, 100);
    limits = LimitsOfThisProcess();
  }
  ASSERT_TRUE(limits.address_bytes.has_value());
  EXPECT_GT(*limits.address_bytes, 0);
  EXPECT_LT(*limits.address_bytes, int64_t{1} << 60);
  EXPECT_EQ(limits.file_bytes, 123456);
  ASSERT_TRUE(limits.open_files.has_value());
  EXPECT_LE(*limits.open_files, 97);  // three are the standard streams
  EXPECT_GT(*limits.open_files, 0);
  EXPECT_GT(limits.stack_bytes, 0);
}

TEST(ProcessLimitsTest, ThreadsThatRunAreCounted) {
  const int64_t before = LimitsOfThisProcess().threads;
  int64_t during = 0;
  std::thread other([&] { during = LimitsOfThisProcess().threads; });
  other.join();
  EXPECT_GE(before, 1);
  EXPECT_EQ(during, before + 1);
}

TEST(PrepareForLimitsTest, AFileAtItsLimitIsAnErrorOfTheWrite) {
  const auto before = signal(SIGXFSZ, SIG_DFL);
  PrepareForLimits();
  const std::string path = absl::StrCat(testing::TempDir(), "/at_the_limit");
  auto file = PosixFileSystem().Create(path);
  ASSERT_THAT(file, IsOk());
  {
    const Limited longest(RLIMIT_FSIZE, 1000);
    EXPECT_THAT((*file)->Append(std::string(1000, 'x')), IsOk());
    const absl::Status status = (*file)->Append("x");
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), AllOf(HasSubstr(path), HasSubstr("File too large")));
  }
  signal(SIGXFSZ, before);
}

TEST(PrepareForLimitsTest, AsManyFilesMayBeOpenAsTheHardLimitAllows) {
  const auto before = signal(SIGXFSZ, SIG_DFL);
  {
    const Limited few(RLIMIT_NOFILE, 50);
    PrepareForLimits();
    rlimit now;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
    EXPECT_EQ(now.rlim_cur, std::min<rlim_t>(now.rlim_max, 65536));
  }
  signal(SIGXFSZ, before);
}

}  // namespace
}  // namespace megatron
