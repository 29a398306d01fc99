#include "megatron/train/preflight/open_local_checkpoints.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/checkpoint/local/save_local_checkpoint.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kRunId[] = "0123456789abcdef";

TEST(LocalDirectoryTest, VariablesAreThoseOfTheMachine) {
  const std::map<std::string, std::string> variables = {{"TMPDIR", "/scratch/7"}, {"JOB_1", "42"}};
  EXPECT_THAT(LocalDirectory("/dev/shm/run", variables), IsOkAndHolds("/dev/shm/run"));
  EXPECT_THAT(LocalDirectory("$TMPDIR/run", variables), IsOkAndHolds("/scratch/7/run"));
  EXPECT_THAT(LocalDirectory("/x/${JOB_1}b/$JOB_1", variables), IsOkAndHolds("/x/42b/42"));
  EXPECT_THAT(LocalDirectory("/x/$JOB_1b", variables),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("checkpoint.local_save = /x/$JOB_1b: there is no variable "
                                 "'JOB_1b' on this machine")));
  EXPECT_THAT(LocalDirectory("/x/${JOB_1", variables),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a } is missing")));
}

TEST(LocalDirectoryHereTest, IsEmptyWithoutOneAndWhereAVariableIsNotSet) {
  CheckpointOptions options;
  EXPECT_EQ(LocalDirectoryHere(options), "");
  options.local_save = "/local/run";
  EXPECT_EQ(LocalDirectoryHere(options), "/local/run");
  options.local_save = "$NO_SUCH_VARIABLE/x";
  EXPECT_EQ(LocalDirectoryHere(options), "");
}

class OpenLocalCheckpointsTest : public ::testing::Test {
 protected:
  OpenLocalCheckpointsTest() {
    options_.save = options_.load = "/save";
    options_.local_save = "/local";
    options_.local_save_interval = 1;
    EXPECT_THAT(fs_.CreateDirs("/save"), IsOk());
  }

  static CheckpointState StateOf(int64_t iteration) {
    CheckpointState state;
    state.run_id = kRunId;
    state.iteration = iteration;
    return state;
  }

  // What a process alone agrees on.
  static absl::Status Alone(const absl::Status& mine) { return mine; }

  std::function<void(const std::string&)> Note() {
    return [this](const std::string& line) { told_.push_back(line); };
  }

  void SaveLocal(int64_t iteration) {
    const absl::StatusOr<LocalPlace> place =
        OpenLocalPlace(fs_, options_, 1, ProcessGroup(), Alone, Note());
    ASSERT_THAT(place, IsOk());
    LocalSaveOptions save;
    save.place = *place;
    ASSERT_THAT(SaveLocalCheckpoint(fs_, save, StateOf(iteration)), IsOk());
  }

  void Save(int64_t iteration) {
    SaveOptions save;
    save.directory = options_.save;
    ASSERT_THAT(SaveCheckpoint(fs_, save, StateOf(iteration)), IsOk());
  }

  // Returns the path of what is in the run's directory on this machine.
  std::string Local(absl::string_view name) {
    const std::string run = *ReadFileToString(fs_, "/save/local_checkpoints.txt");
    return absl::StrCat("/local/", absl::StripAsciiWhitespace(run), "/", name);
  }

  // Returns the directory that a run would start from; what it tells is in `told_`.
  std::string Start() {
    told_.clear();
    const auto tell = Note();
    absl::StatusOr<StartingPoint> start = OpenCheckpoint(fs_, options_, tell);
    EXPECT_THAT(start, IsOk());
    const absl::StatusOr<LocalPlace> place =
        OpenLocalPlace(fs_, options_, 1, ProcessGroup(), Alone, Note());
    EXPECT_THAT(place, IsOk());
    EXPECT_THAT(
        PreferLocalCheckpoint(fs_, options_, kRunId, *place, ProcessGroup(), tell, tell, &*start),
        IsOk());
    return start->checkpoint == nullptr ? "" : start->checkpoint->directory();
  }

  MemoryFileSystem fs_;
  CheckpointOptions options_;
  std::vector<std::string> told_;
};

TEST_F(OpenLocalCheckpointsTest, TheNewerOneIsTaken) {
  EXPECT_EQ(Start(), "");
  SaveLocal(3);
  EXPECT_EQ(Start(), Local("iter_0000003"));
  EXPECT_TRUE(fs_.Stat(Local("iter_0000003")).ok());
  EXPECT_THAT(told_, ElementsAre(absl::StrCat("taking the local checkpoint ", Local("iter_0000003"),
                                              ", 1 shard: /save has none")));
  Save(3);
  EXPECT_EQ(Start(), "/save/iter_0000003");
  EXPECT_THAT(told_, IsEmpty());
  SaveLocal(4);
  SaveLocal(5);
  EXPECT_EQ(Start(), Local("iter_0000005"));
  EXPECT_THAT(told_, ElementsAre(HasSubstr("the newest in /save is of iteration 3")));
}

TEST_F(OpenLocalCheckpointsTest, CheckpointsOfAnotherStartOfTheDirectoryAreNotTheRuns) {
  SaveLocal(5);
  ASSERT_THAT(fs_.Remove("/save/local_checkpoints.txt"), IsOk());
  EXPECT_EQ(Start(), "");
}

// The iteration of the checkpoint that a run begins from is another run's.
TEST_F(OpenLocalCheckpointsTest, OwnLocalCheckpointsComeBeforeThoseThatWereLoaded) {
  SaveOptions other;
  other.directory = "/other";
  ASSERT_THAT(SaveCheckpoint(fs_, other, StateOf(1000)), IsOk());
  options_.load = "/other";
  options_.finetune = true;
  EXPECT_EQ(Start(), "/other/iter_0001000");
  SaveLocal(5);
  EXPECT_EQ(Start(), Local("iter_0000005"));
}

TEST_F(OpenLocalCheckpointsTest, WithoutAnotherMachineThereAreNoCopies) {
  options_.peer_copies = 1;
  const absl::StatusOr<LocalPlace> place =
      OpenLocalPlace(fs_, options_, 4, ProcessGroup(), Alone, Note());
  ASSERT_THAT(place, IsOk());
  EXPECT_THAT(place->machines, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(told_, ElementsAre("checkpoint.peer_copies = 1: all ranks have one "
                                 "checkpoint.local_save, so that there are no copies"));
}

TEST_F(OpenLocalCheckpointsTest, WhereThereIsNoRoomTrainingGoesOnWithoutThem) {
  ASSERT_THAT(WriteFileAtomically(fs_, "/local", "a file"), IsOk());
  absl::StatusOr<LocalPlace> place =
      OpenLocalPlace(fs_, options_, 4, ProcessGroup(), Alone, Note());
  ASSERT_THAT(place, IsOk());
  EXPECT_EQ(place->directory, "");
  EXPECT_THAT(told_, ElementsAre(AllOf(HasSubstr("checkpoint.local_save: "), HasSubstr("/local"),
                                       HasSubstr("training continues without local checkpoints"))));
  StartingPoint start;
  EXPECT_THAT(
      PreferLocalCheckpoint(fs_, options_, kRunId, *place, ProcessGroup(), Note(), Note(), &start),
      IsOk());
  EXPECT_EQ(start.checkpoint, nullptr);

  // The next start has them again.
  ASSERT_THAT(fs_.Remove("/local"), IsOk());
  place = OpenLocalPlace(fs_, options_, 4, ProcessGroup(), Alone, Note());
  ASSERT_THAT(place, IsOk());
  EXPECT_THAT(place->directory, HasSubstr("/local/"));
}

TEST_F(OpenLocalCheckpointsTest, WhatCannotBeIsRefused) {
  ASSERT_THAT(WriteFileAtomically(fs_, "/save/local_checkpoints.txt", "../../etc\n"), IsOk());
  const absl::Status status =
      OpenLocalPlace(fs_, options_, 4, ProcessGroup(), Alone, Note()).status();
  EXPECT_EQ(ExitCodeOf(status), kExitIo);
  EXPECT_THAT(std::string(status.message()), HasSubstr("holds no name of local checkpoints"));
  options_.local_save = "$NO_SUCH_VARIABLE/x";
  EXPECT_EQ(ExitCodeOf(OpenLocalPlace(fs_, options_, 4, ProcessGroup(), Alone, Note()).status()),
            kExitConfig);
}

// As that of a process that the others go on without.
TEST_F(OpenLocalCheckpointsTest, TheAgreementSaysWhoseErrorAVariableThatIsMissingIs) {
  options_.local_save = "$NO_SUCH_VARIABLE/x";
  const auto leave = [](const absl::Status& mine) {
    EXPECT_EQ(ExitCodeOf(mine), kExitConfig);
    return WithExitCode(absl::Status(mine.code(), mine.message()), kExitHang);
  };
  const absl::Status status =
      OpenLocalPlace(fs_, options_, 4, ProcessGroup(), leave, Note()).status();
  EXPECT_EQ(ExitCodeOf(status), kExitHang);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no variable 'NO_SUCH_VARIABLE'"));
}

}  // namespace
}  // namespace megatron
