#include "megatron/base/memory_file_system.h"

#include <set>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(MemoryFileSystemTest, FilesAreWrittenReadRenamedAndRemoved) {
  MemoryFileSystem fs;
  ASSERT_THAT(fs.CreateDirs("/a/b"), IsOk());
  EXPECT_THAT(WriteFileAtomically(fs, "/a/b/file", "text"), IsOk());
  EXPECT_THAT(ReadFileToString(fs, "/a/b/file"), IsOkAndHolds("text"));
  EXPECT_THAT(fs.List("/a"), IsOkAndHolds(ElementsAre("b")));
  EXPECT_THAT(fs.Remove("/a"), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(fs.Rename("/a/b", "/a/c"), IsOk());
  EXPECT_THAT(ReadFileToString(fs, "/a/b/file"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(ReadFileToString(fs, "/a/c/file"), IsOkAndHolds("text"));
  EXPECT_THAT(fs.RemoveTree("/a"), IsOk());
  EXPECT_THAT(fs.List("/"), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(fs.Create("/none/file"), StatusIs(absl::StatusCode::kNotFound));
}

// Each test writes "new" over "old" in its own order; Outcomes() tells what a crash at the end may
// leave.
class PowerCutTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_THAT(WriteFileAtomically(fs_, "/file", "old"), IsOk()); }

  void Write(const std::string& path, bool sync) {
    auto file = fs_.Create(path);
    ASSERT_THAT(file, IsOk());
    ASSERT_THAT((*file)->Append("new"), IsOk());
    if (sync) {
      ASSERT_THAT((*file)->Sync(), IsOk());
    }
    ASSERT_THAT((*file)->Close(), IsOk());
  }

  // Returns all contents that may be read after a crash now; "none" stands for no file.
  std::set<std::string> Outcomes(CrashModel model) {
    std::set<std::string> outcomes;
    for (uint64_t seed = 0; seed < 50; ++seed) {
      auto image = fs_.CrashImage(fs_.operation_count(), model, seed);
      outcomes.insert(ReadFileToString(*image, "/file").value_or("none"));
    }
    return outcomes;
  }

  MemoryFileSystem fs_;
};

TEST_F(PowerCutTest, ARenameIsLostIfItsDirectoryWasNotSynced) {
  Write("/new", true);
  ASSERT_THAT(fs_.Rename("/new", "/file"), IsOk());
  EXPECT_THAT(Outcomes(CrashModel::kKillProcess), ElementsAre("new"));
  EXPECT_THAT(Outcomes(CrashModel::kLoseUnsynced), ElementsAre("old"));
  EXPECT_THAT(Outcomes(CrashModel::kShuffleNames), ElementsAre("new", "old"));
}

TEST_F(PowerCutTest, ARenamedFileIsEmptyOrTornIfItsDataWasNotSynced) {
  Write("/new", false);
  ASSERT_THAT(fs_.Rename("/new", "/file"), IsOk());
  ASSERT_THAT(fs_.SyncDir("/"), IsOk());
  EXPECT_THAT(Outcomes(CrashModel::kLoseUnsynced), ElementsAre(""));
  EXPECT_THAT(Outcomes(CrashModel::kTearUnsynced), ElementsAre("", std::string(3, '\0'), "new"));
}

TEST_F(PowerCutTest, SyncedDataIsKeptUnderEveryCrashModel) {
  Write("/new", true);
  ASSERT_THAT(fs_.Rename("/new", "/file"), IsOk());
  ASSERT_THAT(fs_.SyncDir("/"), IsOk());
  for (CrashModel model : {CrashModel::kKillProcess, CrashModel::kLoseUnsynced,
                           CrashModel::kTearUnsynced, CrashModel::kShuffleNames}) {
    EXPECT_THAT(Outcomes(model), ElementsAre("new"));
  }
}

TEST_F(PowerCutTest, OverwritingInPlaceMayLoseBothVersions) {
  Write("/file", false);
  EXPECT_THAT(Outcomes(CrashModel::kTearUnsynced),
              ElementsAre("", std::string(3, '\0'), "new", "old"));
}

}  // namespace
}  // namespace megatron
