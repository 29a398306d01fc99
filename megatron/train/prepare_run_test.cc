#include "megatron/train/prepare_run.h"

#include <stdlib.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/launch/claim_line.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/failure/failure.h"
#include "megatron/train/failure/run_lock.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::testing::HasSubstr;

constexpr char kBase[] =
    "model { num_layers: 2 hidden_size: 32 num_attention_heads: 2 seq_length: 16 }\n"
    "optimizer { lr: 0.1 }\n"
    "train { micro_batch_size: 2 global_batch_size: 4 train_iters: 3 }\n"
    "system { num_threads: 1 }\n"
    "data { stories {} }\n";

PretrainCommand Command() {
  PretrainCommand command;
  command.program = "pretrain_gpt";
  command.config = "base";
  return command;
}

// A process that is a whole run, and prepares it.
struct Process {
  const PretrainCommand command = Command();
  RunProcess process{LaunchEnvironment()};
  RanksOptions ranks;
  FirstFailure failure;
  RunEvents events;
  DeviceCalls device_calls;
  RankRecovery recovery{ranks, process.launch(), failure, [](int64_t) { return false; }};
  RunPreparation preparation{command, process, SteadyNow(), {&recovery, &events, &device_calls}};

  absl::StatusOr<AcceptedRun> Plan(const std::vector<std::string>& overrides) {
    return preparation.Plan(LoadConfigFromString(kBase, "base", overrides, ConfigPurpose::kRun),
                            /*layout=*/std::nullopt);
  }
  absl::StatusOr<PretrainRun> Prepare(const std::vector<std::string>& overrides) {
    absl::StatusOr<AcceptedRun> accepted = Plan(overrides);
    if (!accepted.ok()) return accepted.status();
    return preparation.Prepare(&*accepted);
  }
};

TEST(PrepareRunTest, OpensWhatTheRanksNeed) {
  Process process;
  absl::StatusOr<AcceptedRun> accepted = process.Plan({});
  ASSERT_THAT(accepted, IsOk());
  const absl::StatusOr<PretrainRun> run = process.preparation.Prepare(&*accepted);
  ASSERT_THAT(run, IsOk());
  EXPECT_EQ(accepted->loaded.config.train().train_iters(), 3);
  EXPECT_EQ(run->options().loop.train_iters, 3);
  EXPECT_NE(run->tokenizer, nullptr);
  EXPECT_FALSE(run->training.data.fingerprint.empty());
  EXPECT_FALSE(run->training.description.identity.empty());
  EXPECT_EQ(run->start.checkpoint, nullptr);
  EXPECT_EQ(run->threads_per_rank, 1);
  EXPECT_FALSE(run->local_rank.has_value());
}

TEST(PrepareRunTest, APlanRefusesWhatIsWrongBeforeAnythingIsOpened) {
  Process process;
  const std::string save = absl::StrCat(testing::TempDir(), "/never");
  const absl::Status wrong =
      process.Prepare({"optimizer.lr=-1", "checkpoint.save=" + save}).status();
  EXPECT_THAT(wrong.message(), HasSubstr("optimizer.lr"));
  EXPECT_EQ(ExitCodeOf(wrong), kExitConfig);
  EXPECT_TRUE(absl::IsNotFound(PosixFileSystem().Stat(save).status()));
}

TEST(PrepareRunTest, TheDirectoryOfCheckpointsIsLockedAsLongAsThePreparationLives) {
  const std::string save = absl::StrCat("checkpoint.save=", testing::TempDir(), "/save");
  std::optional<Process> first(std::in_place);
  ASSERT_THAT(first->Prepare({save}), IsOk());
  Process second;
  EXPECT_EQ(ExitCodeOf(second.Prepare({save}).status()), kExitConfig);
  first.reset();
  EXPECT_THAT(second.Prepare({save}), IsOk());
}

TEST(PrepareRunTest, ARunWhoseLockWasRemovedTakesItAgainUnlessAnotherRunHasIt) {
  const std::string save = absl::StrCat(testing::TempDir(), "/unlocked");
  const std::vector<std::string> overrides = {"checkpoint.save=" + save};
  Process first;
  const absl::StatusOr<PretrainRun> run = first.Prepare(overrides);
  ASSERT_THAT(run, IsOk());
  EXPECT_THAT(run->training.keep_save_lock(/*is_first=*/true), IsOkAndHolds(false));

  ASSERT_THAT(PosixFileSystem().Remove(save + "/.lock"), IsOk());
  EXPECT_THAT(run->training.keep_save_lock(/*is_first=*/true), IsOkAndHolds(true));
  EXPECT_THAT(run->training.keep_save_lock(/*is_first=*/true), IsOkAndHolds(false));
  EXPECT_EQ(ExitCodeOf(Process().Prepare(overrides).status()), kExitConfig);

  ASSERT_THAT(PosixFileSystem().Remove(save + "/.lock"), IsOk());
  std::optional<Process> second(std::in_place);
  ASSERT_THAT(second->Prepare(overrides), IsOk());
  const absl::Status taken = run->training.keep_save_lock(/*is_first=*/true).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(taken)) << taken;
  EXPECT_EQ(ExitCodeOf(taken), kExitConfig);
  second.reset();
  EXPECT_THAT(run->training.keep_save_lock(/*is_first=*/true), IsOkAndHolds(true));
}

TEST(PrepareRunTest, WithoutADirectoryOfCheckpointsNoLockIsKept) {
  Process process;
  const absl::StatusOr<PretrainRun> run = process.Prepare({});
  ASSERT_THAT(run, IsOk());
  EXPECT_EQ(run->training.keep_save_lock, nullptr);
}

// As at a restart, after somebody has renamed the directory.
TEST(PrepareRunTest, ADirectoryThatTheLauncherHadClaimedIsNotMadeAnew) {
  constexpr char kLauncher[] = "launch (process 7)";
  const std::string save = absl::StrCat(testing::TempDir(), "/claimed");
  const std::string elsewhere = absl::StrCat(testing::TempDir(), "/elsewhere");
  setenv(kClaimantVariable, kLauncher, /*overwrite=*/1);
  setenv(kClaimedVariable, save.c_str(), /*overwrite=*/1);
  const absl::Status vanished = Process().Prepare({"checkpoint.save=" + save}).status();
  EXPECT_EQ(ExitCodeOf(vanished), kExitIo);
  EXPECT_THAT(vanished.message(), HasSubstr(save + ": the directory that this run had"));
  EXPECT_TRUE(absl::IsNotFound(PosixFileSystem().Stat(save).status()));

  // The configuration names another one since.
  EXPECT_THAT(Process().Prepare({"checkpoint.save=" + elsewhere}), IsOk());

  ASSERT_THAT(PosixFileSystem().CreateDirs(save), IsOk());
  const absl::StatusOr<RunLock> claim = RunLock::Claim(save, kLauncher, absl::ZeroDuration());
  ASSERT_THAT(claim, IsOk());
  EXPECT_THAT(Process().Prepare({"checkpoint.save=" + save}), IsOk());
  unsetenv(kClaimantVariable);
  unsetenv(kClaimedVariable);
}

}  // namespace
}  // namespace megatron
