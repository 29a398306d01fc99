#include "megatron/train/run_lock.h"

#include <string>
#include <utility>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

TEST(RunLockTest, IsHeldByOneUntilItIsGone) {
  const std::string directory = ::testing::TempDir();
  absl::StatusOr<RunLock> first = RunLock::Take(directory);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(RunLock::Take(directory), StatusIs(absl::StatusCode::kFailedPrecondition));
  {
    const RunLock moved = *std::move(first);
    EXPECT_THAT(RunLock::Take(directory), StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  EXPECT_THAT(RunLock::Take(directory), IsOk());
}

TEST(RunLockTest, AMissingDirectoryIsNamed) {
  EXPECT_THAT(RunLock::Take("/nowhere/at/all"),
              StatusIs(absl::StatusCode::kNotFound, ::testing::HasSubstr("/nowhere/at/all")));
}

}  // namespace
}  // namespace megatron
