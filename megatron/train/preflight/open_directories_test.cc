#include "megatron/train/preflight/open_directories.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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
