#include "megatron/train/failure/run_lock.h"

#include <string>
#include <thread>
#include <utility>

#include "absl/status/status_matchers.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

const absl::Duration kNoPatience = absl::ZeroDuration();

TEST(RunLockTest, IsHeldByOneRunUntilItIsDestroyed) {
  const std::string directory = ::testing::TempDir();
  absl::StatusOr<RunLock> first = RunLock::Take(directory, kNoPatience);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(RunLock::Take(directory, kNoPatience),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  {
    const RunLock moved = *std::move(first);
    EXPECT_THAT(RunLock::Take(directory, kNoPatience),
                StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  EXPECT_THAT(RunLock::Take(directory, kNoPatience), IsOk());
}

TEST(RunLockTest, ProcessesOfOneRunHoldItTogether) {
  const std::string directory = ::testing::TempDir();
  absl::StatusOr<RunLock> first = RunLock::Take(directory, kNoPatience);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(RunLock::Join(directory), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_THAT(first->Share(), IsOk());
  absl::StatusOr<RunLock> second = RunLock::Join(directory);
  ASSERT_THAT(second, IsOk());
  *first = RunLock();
  EXPECT_THAT(RunLock::Take(directory, kNoPatience),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  std::thread leaving([&] {
    absl::SleepFor(absl::Milliseconds(100));
    *second = RunLock();
  });
  EXPECT_THAT(RunLock::Take(directory, absl::Seconds(60)), IsOk());
  leaving.join();
}

TEST(RunLockTest, TheErrorNamesAMissingDirectory) {
  EXPECT_THAT(RunLock::Take("/nowhere/at/all", kNoPatience),
              StatusIs(absl::StatusCode::kNotFound, ::testing::HasSubstr("/nowhere/at/all")));
}

}  // namespace
}  // namespace megatron
