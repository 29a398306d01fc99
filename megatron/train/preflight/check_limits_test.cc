#include "megatron/train/preflight/check_limits.h"

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

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

ProcessLimits Addresses(int64_t bytes) {
  ProcessLimits limits;
  limits.address_bytes = bytes;
  return limits;
}

TEST(CheckLimitsTest, AProcessNeedsAddressesForItsRanks) {
  const RunPlan plan = TwoStages();
  RunOptions options;
  EXPECT_THAT(CheckLimits({}, options, plan, std::nullopt), IsOk());
  // All ranks are threads.
  EXPECT_THAT(CheckLimits(Addresses(8192), options, plan, std::nullopt), IsOk());
  EXPECT_THAT(CheckLimits(Addresses(8191), options, plan, std::nullopt),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("allocates 8.00 KiB"), HasSubstr("(ulimit -v)"),
                             HasSubstr("leaves 8.00 KiB"))));
  // Each is a process.
  options.ranks.processes = true;
  EXPECT_THAT(CheckLimits(Addresses(3072), options, plan, std::nullopt), IsOk());
  EXPECT_THAT(CheckLimits(Addresses(3071), options, plan, std::nullopt),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("allocates 3.00 KiB")));
  EXPECT_THAT(CheckLimits(Addresses(1024), options, plan, /*rank=*/2), IsOk());
  EXPECT_THAT(CheckLimits(Addresses(1024), options, plan, /*rank=*/1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("allocates 3.00 KiB")));
  // On GPUs it is host memory alone.
  options.device = DeviceType::kCuda;
  EXPECT_THAT(CheckLimits(Addresses(1024), options, plan, /*rank=*/1), IsOk());
  EXPECT_THAT(CheckLimits(Addresses(1023), options, plan, /*rank=*/1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("allocates 1.00 KiB")));
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
  EXPECT_THAT(CheckLimits(limits, options, plan, std::nullopt), IsOk());
  limits.file_bytes = 4095;
  EXPECT_THAT(CheckLimits(limits, options, plan, std::nullopt),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("checkpoint.save: a rank's shard of a checkpoint in "
                                       "'/saved' has 4.00 KiB"),
                             HasSubstr("(ulimit -f)"))));
  // Those of other ranks are others' matter, and only the first of a stage is known to have it all.
  EXPECT_THAT(CheckLimits(limits, options, plan, /*rank=*/0), IsOk());
  EXPECT_THAT(CheckLimits(limits, options, plan, /*rank=*/2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'/saved'")));
  EXPECT_THAT(CheckLimits(limits, options, plan, /*rank=*/3), IsOk());
  limits.file_bytes = 2047;
  EXPECT_THAT(CheckLimits(limits, options, plan, /*rank=*/3),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("parallel.param_offload_path: a rank's file of weights in "
                                 "'/weights' has 2.00 KiB")));
  limits.file_bytes = 1000;
  EXPECT_THAT(CheckLimits(limits, options, plan, /*rank=*/0),
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
