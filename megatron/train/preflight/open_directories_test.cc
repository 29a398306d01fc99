#include "megatron/train/preflight/open_directories.h"

#include <stdlib.h>

#include <optional>
#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/comm/launch/claim_line.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::_;
using ::testing::HasSubstr;

class OpenDirectoriesTest : public ::testing::Test {
 protected:
  OpenDirectoriesTest() {
    EXPECT_THAT(fs_.RemoveTree(JoinPath(::testing::TempDir(), "open_directories")), IsOk());
    checkpoint_.save = JoinPath(::testing::TempDir(), "open_directories/save");
    unsetenv(kClaimantVariable);
  }
  ~OpenDirectoriesTest() override { unsetenv(kClaimantVariable); }

  // Opens the directory as the only process of a run, and returns the one that a claim was asked
  // for.
  std::optional<std::string> OpenAndReadErrors(absl::StatusOr<RunLock>* lock) {
    ::testing::internal::CaptureStderr();
    *lock = OpenSaveDirectory(fs_, checkpoint_, "run", 0, 1);
    const std::string errors = ::testing::internal::GetCapturedStderr();
    return ReadClaimLine(absl::StripSuffix(errors, "\n"));
  }

  FileSystem& fs_ = PosixFileSystem();
  CheckpointOptions checkpoint_;
};

TEST_F(OpenDirectoriesTest, MakesTheDirectoryOfCheckpointsAndLeavesOnlyTheLock) {
  const auto lock = OpenSaveDirectory(fs_, checkpoint_, "run", 0, 1);
  ASSERT_THAT(lock, IsOk());
  const auto names = fs_.List(checkpoint_.save);
  ASSERT_THAT(names, IsOk());
  EXPECT_THAT(*names, ::testing::ElementsAre(".lock"));
}

TEST_F(OpenDirectoriesTest, WithoutADirectoryNothingIsOpened) {
  EXPECT_THAT(OpenSaveDirectory(fs_, {}, "run", 0, 1), IsOk());
  EXPECT_THAT(JoinSaveDirectory({}), IsOk());
}

TEST_F(OpenDirectoriesTest, ADirectoryThatCannotBeWrittenMeansTheCodeOfFiles) {
  checkpoint_.save = "/proc/checkpoints";
  const absl::Status status = OpenSaveDirectory(fs_, checkpoint_, "run", 0, 1).status();
  EXPECT_EQ(ExitCodeOf(status), kExitIo);
  EXPECT_THAT(std::string(status.message()), HasSubstr("checkpoint.save = /proc/checkpoints: "));
  ProfileOptions profile;
  profile.directory = "/proc/profile";
  const absl::Status unwritable = OpenProfileDirectory(fs_, profile, 0);
  EXPECT_EQ(ExitCodeOf(unwritable), kExitIo);
  EXPECT_THAT(std::string(unwritable.message()), HasSubstr("logging.profile_dir = "));
}

TEST_F(OpenDirectoriesTest, ASecondRunIsRefused) {
  const auto lock = OpenSaveDirectory(fs_, checkpoint_, "run", 0, 1);
  ASSERT_THAT(lock, IsOk());
  const absl::Status second = OpenSaveDirectory(fs_, checkpoint_, "run", 0, 1).status();
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kFailedPrecondition, _));
  EXPECT_EQ(ExitCodeOf(second), kExitConfig);
  EXPECT_EQ(ExitCodeOf(JoinSaveDirectory(checkpoint_).status()), kExitConfig);
}

TEST_F(OpenDirectoriesTest, OtherProcessesOfTheRunJoin) {
  const auto first = OpenSaveDirectory(fs_, checkpoint_, "run", 0, 2);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(OpenSaveDirectory(fs_, checkpoint_, "run", 1, 2), IsOk());
  EXPECT_THAT(JoinSaveDirectory(checkpoint_), IsOk());
}

TEST_F(OpenDirectoriesTest, ALauncherIsAskedToClaimTheDirectoryUntilItHas) {
  absl::StatusOr<RunLock> lock;
  EXPECT_EQ(OpenAndReadErrors(&lock), std::nullopt);  // nobody listens
  ASSERT_THAT(lock, IsOk());
  *lock = RunLock();
  setenv(kClaimantVariable, "launch (process 7)", /*overwrite=*/1);
  EXPECT_EQ(OpenAndReadErrors(&lock), checkpoint_.save);
  ASSERT_THAT(lock, IsOk());
  absl::StatusOr<RunLock> claim =
      RunLock::Claim(checkpoint_.save, "launch (process 7)", absl::ZeroDuration());
  ASSERT_THAT(claim, IsOk());
  *lock = RunLock();
  EXPECT_EQ(OpenAndReadErrors(&lock), std::nullopt);  // it is started again
  ASSERT_THAT(lock, IsOk());
  *lock = RunLock();
  unsetenv(kClaimantVariable);
  const absl::Status other = OpenSaveDirectory(fs_, checkpoint_, "run", 0, 1).status();
  EXPECT_EQ(ExitCodeOf(other), kExitConfig);
  EXPECT_THAT(std::string(other.message()), HasSubstr("that of launch (process 7), "));
}

// As ranks of a host that was paused do, after their launcher has started the run again.
TEST_F(OpenDirectoriesTest, EarlierRanksOfTheRunThatStillHaveTheDirectoryAreWorthAnotherStart) {
  setenv(kClaimantVariable, "launch (process 7)", /*overwrite=*/1);
  absl::StatusOr<RunLock> earlier;
  EXPECT_EQ(OpenAndReadErrors(&earlier), checkpoint_.save);
  ASSERT_THAT(earlier, IsOk());
  // Nobody has the claim: the lock may be another run's.
  EXPECT_EQ(ExitCodeOf(OpenSaveDirectory(fs_, checkpoint_, "run", 0, 2).status()), kExitConfig);
  const absl::StatusOr<RunLock> claim =
      RunLock::Claim(checkpoint_.save, "launch (process 7)", absl::ZeroDuration());
  ASSERT_THAT(claim, IsOk());
  const absl::Status again = OpenSaveDirectory(fs_, checkpoint_, "run", 0, 2).status();
  EXPECT_EQ(ExitCodeOf(again), kExitPeerLost);
  EXPECT_THAT(std::string(again.message()), HasSubstr("an earlier start of this run"));
  *earlier = RunLock();
  EXPECT_THAT(OpenSaveDirectory(fs_, checkpoint_, "run", 0, 2), IsOk());
}

TEST_F(OpenDirectoriesTest, WhoeverStartsRanksClaimsTheDirectoryForThem) {
  absl::StatusOr<RunLock> claim = ClaimSaveDirectory(fs_, checkpoint_, "/usr/bin/pretrain_gpt");
  ASSERT_THAT(claim, IsOk());
  absl::StatusOr<RunLock> lock;
  EXPECT_EQ(OpenAndReadErrors(&lock), std::nullopt);
  ASSERT_THAT(lock, IsOk());
  *lock = RunLock();
  unsetenv(kClaimantVariable);  // as in a program that it has not started
  const absl::Status other = ClaimSaveDirectory(fs_, checkpoint_, "pretrain_gpt").status();
  EXPECT_EQ(ExitCodeOf(other), kExitConfig);
  EXPECT_THAT(std::string(other.message()), HasSubstr("that of pretrain_gpt (process "));
  *claim = RunLock();
  EXPECT_THAT(OpenSaveDirectory(fs_, checkpoint_, "run", 0, 1), IsOk());
}

TEST_F(OpenDirectoriesTest, ADirectoryThatIsInUseIsNotClaimed) {
  const auto lock = OpenSaveDirectory(fs_, checkpoint_, "run", 0, 1);
  ASSERT_THAT(lock, IsOk());
  const absl::Status claim = ClaimSaveDirectory(fs_, checkpoint_, "pretrain_gpt").status();
  EXPECT_EQ(ExitCodeOf(claim), kExitConfig);
  EXPECT_THAT(std::string(claim.message()), HasSubstr("another process is saving to "));
  EXPECT_EQ(getenv(kClaimantVariable), nullptr);
}

// The launcher above has the claim.
TEST_F(OpenDirectoriesTest, WhoeverALauncherHasStartedClaimsNothing) {
  setenv(kClaimantVariable, "launch (process 7)", /*overwrite=*/1);
  EXPECT_THAT(ClaimSaveDirectory(fs_, checkpoint_, "pretrain_gpt"), IsOk());
  EXPECT_STREQ(getenv(kClaimantVariable), "launch (process 7)");
  absl::StatusOr<RunLock> lock;
  EXPECT_EQ(OpenAndReadErrors(&lock), checkpoint_.save);
  EXPECT_THAT(lock, IsOk());
}

TEST_F(OpenDirectoriesTest, ACheckpointThatCannotBeReadIsDamaged) {
  ASSERT_THAT(fs_.CreateDirs(checkpoint_.save), IsOk());
  ASSERT_THAT(WriteFileAtomically(
                  fs_, JoinPath(checkpoint_.save, "latest_checkpointed_iteration.txt"), "12\n"),
              IsOk());
  EXPECT_EQ(ExitCodeOf(OpenSaveDirectory(fs_, checkpoint_, "run", 0, 1).status()),
            kExitCorruptCheckpoint);
}

}  // namespace
}  // namespace megatron
