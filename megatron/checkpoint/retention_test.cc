#include "megatron/checkpoint/retention.h"

#include <unistd.h>

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "megatron/checkpoint/test_state.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::testing::ElementsAre;

constexpr char kLatest[] = "latest_checkpointed_iteration.txt";

absl::Status Save(FileSystem& fs, const std::string& directory, int64_t iteration, int keep,
                  const std::string& run_id = kTestRunId, int64_t retain_interval = 0) {
  SaveOptions options;
  options.directory = directory;
  options.keep = keep;
  options.retain_interval = retain_interval;
  const TestState test_state(iteration);
  CheckpointState state = test_state.Whole();
  state.run_id = run_id;
  return SaveCheckpoint(fs, options, state);
}

TEST(RetentionTest, KeepsTheNewest) {
  MemoryFileSystem fs;
  for (int64_t i = 1; i <= 5; ++i) ASSERT_THAT(Save(fs, "/save", i, 2), IsOk());
  EXPECT_THAT(fs.List("/save"), IsOkAndHolds(ElementsAre("iter_0000004", "iter_0000005", kLatest)));
  ASSERT_THAT(Save(fs, "/save", 6, 1), IsOk());
  EXPECT_THAT(fs.List("/save"), IsOkAndHolds(ElementsAre("iter_0000006", kLatest)));
}

TEST(RetentionTest, MultiplesOfTheIntervalStay) {
  MemoryFileSystem fs;
  for (int64_t i = 1; i <= 7; ++i)
    ASSERT_THAT(Save(fs, "/save", i, 2, kTestRunId, /*retain_interval=*/3), IsOk());
  EXPECT_THAT(fs.List("/save"),
              IsOkAndHolds(ElementsAre("iter_0000003", "iter_0000006", "iter_0000007", kLatest)));
  ASSERT_THAT(Save(fs, "/save", 8, 1, kTestRunId, /*retain_interval=*/3), IsOk());
  EXPECT_THAT(fs.List("/save"),
              IsOkAndHolds(ElementsAre("iter_0000003", "iter_0000006", "iter_0000008", kLatest)));
}

TEST(RetentionTest, ZeroKeepsAll) {
  MemoryFileSystem fs;
  for (int64_t i = 1; i <= 3; ++i) ASSERT_THAT(Save(fs, "/save", i, 0), IsOk());
  EXPECT_THAT(fs.List("/save"),
              IsOkAndHolds(ElementsAre("iter_0000001", "iter_0000002", "iter_0000003", kLatest)));
}

TEST(RetentionTest, OtherRunsAndLaterIterationsStay) {
  MemoryFileSystem fs;
  ASSERT_THAT(Save(fs, "/save", 1, 0, "fedcba9876543210"), IsOk());
  ASSERT_THAT(Save(fs, "/save", 2, 0), IsOk());
  ASSERT_THAT(Save(fs, "/save", 9, 0), IsOk());
  ASSERT_THAT(Save(fs, "/save", 3, 1), IsOk());
  EXPECT_THAT(fs.List("/save"),
              IsOkAndHolds(ElementsAre("iter_0000001", "iter_0000003", "iter_0000009", kLatest)));
}

TEST(RetentionTest, DirectoriesWithAForeignFileStay) {
  MemoryFileSystem fs;
  ASSERT_THAT(Save(fs, "/save", 1, 0), IsOk());
  ASSERT_THAT(WriteFileAtomically(fs, "/save/iter_0000001/notes.txt", "good run"), IsOk());
  ASSERT_THAT(fs.CreateDirs("/save/iter_0000002/mp_rank_00"), IsOk());
  ASSERT_THAT(Save(fs, "/save", 3, 1), IsOk());
  EXPECT_THAT(fs.List("/save"),
              IsOkAndHolds(ElementsAre("iter_0000001", "iter_0000002", "iter_0000003", kLatest)));
}

TEST(RetentionTest, RemainsOfInterruptedSavesAreRemoved) {
  MemoryFileSystem fs;
  ASSERT_THAT(Save(fs, "/save", 1, 0), IsOk());
  ASSERT_THAT(fs.Rename("/save/iter_0000001", "/save/iter_0000001.tmp"), IsOk());
  ASSERT_THAT(Save(fs, "/save", 2, 0), IsOk());
  ASSERT_THAT(fs.Rename("/save/iter_0000002", "/save/iter_0000002.old"), IsOk());
  ASSERT_THAT(Save(fs, "/save", 2, 0), IsOk());
  ASSERT_THAT(fs.CreateDirs("/save/iter_0000003.tmp"), IsOk());
  ASSERT_THAT(Save(fs, "/save", 4, 0), IsOk());
  EXPECT_THAT(fs.List("/save"), IsOkAndHolds(ElementsAre("iter_0000002", "iter_0000004", kLatest)));
}

TEST(RetentionTest, AReplacedCheckpointThatIsTheOnlyOneOfItsIterationGetsItsNameBack) {
  MemoryFileSystem fs;
  for (int64_t i = 1; i <= 3; ++i) ASSERT_THAT(Save(fs, "/save", i, 0), IsOk());
  ASSERT_THAT(fs.Rename("/save/iter_0000001", "/save/iter_0000001.old"), IsOk());
  ASSERT_THAT(fs.Rename("/save/iter_0000002", "/save/iter_0000002.old"), IsOk());
  ASSERT_THAT(fs.Rename("/save/iter_0000003", "/save/iter_0000003.old"), IsOk());
  ASSERT_THAT(fs.Remove("/save/iter_0000001.old/shard_00000_of_00001.bin"), IsOk());
  ASSERT_THAT(Save(fs, "/save", 4, 0), IsOk());
  EXPECT_THAT(fs.List("/save"),
              IsOkAndHolds(ElementsAre("iter_0000002", "iter_0000003", "iter_0000004", kLatest)));

  ASSERT_THAT(fs.Rename("/save/iter_0000002", "/save/iter_0000002.old"), IsOk());
  ASSERT_THAT(fs.Rename("/save/iter_0000003", "/save/iter_0000003.old"), IsOk());
  ASSERT_THAT(Save(fs, "/save", 5, 2, kTestRunId, /*retain_interval=*/3), IsOk());
  EXPECT_THAT(fs.List("/save"),
              IsOkAndHolds(ElementsAre("iter_0000003", "iter_0000004", "iter_0000005", kLatest)));
}

TEST(RetentionTest, LinksAreNotFollowed) {
  FileSystem& fs = PosixFileSystem();
  const std::string root = JoinPath(::testing::TempDir(), "LinksAreNotFollowed");
  ASSERT_THAT(fs.RemoveTree(root), IsOk());
  ASSERT_THAT(Save(fs, JoinPath(root, "archive"), 1, 0), IsOk());
  ASSERT_THAT(fs.CreateDirs(JoinPath(root, "save")), IsOk());
  ASSERT_EQ(symlink("../archive/iter_0000001", JoinPath(root, "save/iter_0000001").c_str()), 0);
  ASSERT_THAT(Save(fs, JoinPath(root, "save"), 2, 1), IsOk());
  EXPECT_THAT(fs.List(JoinPath(root, "save")),
              IsOkAndHolds(ElementsAre("iter_0000001", "iter_0000002", kLatest)));
  EXPECT_THAT(FindLatestCheckpoint(fs, JoinPath(root, "archive"), Check::kContents), IsOk());
  EXPECT_THAT(fs.RemoveTree(root), IsOk());
}

}  // namespace
}  // namespace megatron
