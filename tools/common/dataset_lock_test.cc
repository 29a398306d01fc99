#include "tools/common/dataset_lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(DatasetLockTest, OneHolderAtATime) {
  const std::string prefix = testing::TempDir() + "/locked";
  {
    const auto lock = DatasetLock::Take(prefix);
    ASSERT_THAT(lock, IsOk());
    EXPECT_THAT(DatasetLock::Take(prefix),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another process")));
    EXPECT_THAT(DatasetLock::Take(prefix + "2"), IsOk());
  }
  EXPECT_THAT(DatasetLock::Take(prefix), IsOk());
  EXPECT_FALSE(std::ifstream(prefix + ".lock").good());
}

TEST(DatasetLockTest, ADeadProcessHoldsNothing) {
  const std::string prefix = testing::TempDir() + "/left";
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = DatasetLock::Take(prefix);
    _exit(lock.ok() ? 0 : 1);  // ends without the destructor
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE(std::ifstream(prefix + ".lock").good());
  EXPECT_THAT(DatasetLock::Take(prefix), IsOk());
}

TEST(DatasetLockTest, AMissingFolderIsTold) {
  EXPECT_THAT(DatasetLock::Take("/nowhere/x"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("no folder '/nowhere' to write '/nowhere/x' to")));
}

TEST(DatasetLockTest, AFolderThatIsThereIsNotCalledMissing) {
  EXPECT_THAT(DatasetLock::Take("/proc/x"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("write in '/proc', '/proc/x.lock' to begin with")));
  const std::string prefix = testing::TempDir() + "/of_a_link", lock = prefix + ".lock";
  unlink(lock.c_str());
  ASSERT_EQ(symlink("/nowhere/x.lock", lock.c_str()), 0);
  EXPECT_THAT(DatasetLock::Take(prefix),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("/of_a_link.lock' to begin with: No such file"),
                             Not(HasSubstr("no folder")))));
}

}  // namespace
}  // namespace megatron
