#include "megatron/train/failure/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

const absl::Duration kNoPatience = absl::ZeroDuration();
constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr char kNobody[] = "";

// An empty directory.
std::string NewDirectory() {
  std::string path = absl::StrCat(::testing::TempDir(), "/run_lock_XXXXXX");
  EXPECT_NE(mkdtemp(&path[0]), nullptr);
  return path;
}

TEST(RunLockTest, IsHeldByOneRunUntilItIsDestroyed) {
  const std::string directory = NewDirectory();
  absl::StatusOr<RunLock> first = RunLock::Take(directory, kNobody, kNoPatience);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(RunLock::Take(directory, kNobody, kNoPatience),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  {
    const RunLock moved = *std::move(first);
    EXPECT_THAT(RunLock::Take(directory, kNobody, kNoPatience),
                StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  EXPECT_THAT(RunLock::Take(directory, kNobody, kNoPatience), IsOk());
}

TEST(RunLockTest, ProcessesOfOneRunHoldItTogether) {
  const std::string directory = NewDirectory();
  absl::StatusOr<RunLock> first = RunLock::Take(directory, kNobody, kNoPatience);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(RunLock::Join(directory), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_THAT(first->Share(), IsOk());
  absl::StatusOr<RunLock> second = RunLock::Join(directory);
  ASSERT_THAT(second, IsOk());
  *first = RunLock();
  EXPECT_THAT(RunLock::Take(directory, kNobody, kNoPatience),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  std::thread leaving([&] {
    absl::SleepFor(absl::Milliseconds(100));
    *second = RunLock();
  });
  EXPECT_THAT(RunLock::Take(directory, kNobody, kPatience), IsOk());
  leaving.join();
}

TEST(RunLockTest, KnowsWhetherItsFileWasRemovedOrReplaced) {
  const std::string directory = NewDirectory();
  const std::string path = absl::StrCat(directory, "/.lock");
  const absl::StatusOr<RunLock> lock = RunLock::Take(directory, kNobody, kNoPatience);
  ASSERT_THAT(lock, IsOk());
  EXPECT_TRUE(lock->HasItsName());
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_FALSE(lock->HasItsName());
  const absl::StatusOr<RunLock> other = RunLock::Take(directory, kNobody, kNoPatience);
  ASSERT_THAT(other, IsOk());
  EXPECT_TRUE(other->HasItsName());
  EXPECT_FALSE(lock->HasItsName());
  ASSERT_EQ(rename(directory.c_str(), absl::StrCat(directory, "_moved").c_str()), 0);
  EXPECT_FALSE(other->HasItsName());
}

TEST(RunLockTest, TheErrorNamesAMissingDirectory) {
  EXPECT_THAT(RunLock::Take("/nowhere/at/all", kNobody, kNoPatience),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/at/all")));
  EXPECT_THAT(RunLock::Claim("/nowhere/at/all", "launch", kNoPatience),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/at/all")));
}

// Whoever gets kFailedPrecondition takes it that another run is there.
TEST(RunLockTest, APathThatCannotBeADirectoryIsNotAnotherRun) {
  const std::string file = absl::StrCat(NewDirectory(), "/file");
  const int descriptor = open(file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  ASSERT_GE(descriptor, 0);
  close(descriptor);
  EXPECT_THAT(RunLock::Take(file, kNobody, kNoPatience),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Not a directory")));
  EXPECT_THAT(RunLock::Join(file), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(RunLockTest, OnlyRunsOfALauncherGetWhatItHasClaimed) {
  const std::string directory = NewDirectory();
  EXPECT_THAT(RunLock::Claimant(directory), IsOkAndHolds(""));
  absl::StatusOr<RunLock> claim = RunLock::Claim(directory, "launch (process 7)", kNoPatience);
  ASSERT_THAT(claim, IsOk());
  EXPECT_THAT(RunLock::Claimant(directory), IsOkAndHolds("launch (process 7)"));
  for (const char* other : {"", "launch", "launch (process 8)"}) {
    EXPECT_THAT(RunLock::Take(directory, other, kNoPatience),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(directory), HasSubstr("that of launch (process 7), "))))
        << other;
  }
  for (int start = 0; start < 2; ++start) {  // between the two nobody holds the lock
    absl::StatusOr<RunLock> lock = RunLock::Take(directory, "launch (process 7)", kNoPatience);
    ASSERT_THAT(lock, IsOk());
    ASSERT_THAT(lock->Share(), IsOk());
    EXPECT_THAT(RunLock::Join(directory), IsOk());
  }
  EXPECT_THAT(RunLock::Claim(directory, "launch (process 8)", kNoPatience),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("launch (process 7)")));
  *claim = RunLock();
  EXPECT_THAT(RunLock::Claimant(directory), IsOkAndHolds(""));
  EXPECT_THAT(RunLock::Take(directory, kNobody, kNoPatience), IsOk());
}

// What a longer name has left in the file is no part of the next one.
TEST(RunLockTest, AClaimThatHasEndedIsNobodys) {
  const std::string directory = NewDirectory();
  EXPECT_THAT(RunLock::Claim(directory, "a launcher with a long name", kNoPatience), IsOk());
  const absl::StatusOr<RunLock> claim = RunLock::Claim(directory, "launch", kNoPatience);
  ASSERT_THAT(claim, IsOk());
  EXPECT_THAT(RunLock::Claimant(directory), IsOkAndHolds("launch"));
}

// A run that is refused holds no lock that the claimed run could want.
TEST(RunLockTest, WhoeverWaitsForAClaimedDirectoryDoesNotHoldIt) {
  const std::string directory = NewDirectory();
  absl::StatusOr<RunLock> claim = RunLock::Claim(directory, "launch", kNoPatience);
  ASSERT_THAT(claim, IsOk());
  std::thread waiting([&] { EXPECT_THAT(RunLock::Take(directory, kNobody, kPatience), IsOk()); });
  for (int start = 0; start < 100; ++start) {
    EXPECT_THAT(RunLock::Take(directory, "launch", kNoPatience), IsOk());
    absl::SleepFor(absl::Milliseconds(1));
  }
  *claim = RunLock();
  waiting.join();
}

// Opening it to read would wait for a writer.
TEST(RunLockTest, AFifoInPlaceOfTheClaimIsNotWaitedFor) {
  const std::string directory = NewDirectory();
  ASSERT_EQ(mkfifo(absl::StrCat(directory, "/.launcher").c_str(), 0600), 0);
  EXPECT_THAT(RunLock::Claimant(directory), IsOkAndHolds(""));
  EXPECT_THAT(RunLock::Take(directory, kNobody, kNoPatience), IsOk());
}

TEST(RunLockTest, AKilledLauncherLeavesNoClaim) {
  const std::string directory = NewDirectory();
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t launcher = fork();
  ASSERT_GE(launcher, 0);
  if (launcher == 0) {
    const absl::StatusOr<RunLock> claim = RunLock::Claim(directory, "launch", kNoPatience);
    (void)!write(ends[1], claim.ok() ? "1" : "0", 1);
    while (true) pause();
  }
  char has_claimed = 0;
  ASSERT_EQ(read(ends[0], &has_claimed, 1), 1);
  EXPECT_EQ(has_claimed, '1');
  EXPECT_THAT(RunLock::Take(directory, kNobody, kNoPatience),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("that of launch, ")));
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  EXPECT_THAT(RunLock::Take(directory, kNobody, kPatience), IsOk());
  for (const int end : ends) close(end);
}

}  // namespace
}  // namespace megatron
