#include "megatron/checkpoint/checkpoint_directory.h"

#include <unistd.h>

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/checkpoint/shard_header.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kDirectory[] = "/save/iter_0000001";

void WriteShardOf(FileSystem& fs, const std::string& run_id) {
  ASSERT_THAT(fs.CreateDirs(kDirectory), IsOk());
  ASSERT_THAT(WriteAndSync(fs, JoinPath(kDirectory, "shard_00000_of_00001.bin"),
                           EncodeShardHeader({run_id, 1, 0, 1, kShardHeaderBytes})),
              IsOk());
}

TEST(CheckpointDirectoryTest, AMissingManifestIsDataLossThatNamesIt) {
  MemoryFileSystem fs;
  EXPECT_THAT(ReadManifest(fs, "/save/manifest.json"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/save/manifest.json")));
}

TEST(CheckpointDirectoryTest, TheRunIdComesFromAShardWhereThereIsNoManifest) {
  MemoryFileSystem fs;
  WriteShardOf(fs, "0123456789abcdef");
  EXPECT_THAT(ReadRunId(fs, kDirectory), IsOkAndHolds("0123456789abcdef"));
  ASSERT_THAT(WriteAndSync(fs, JoinPath(kDirectory, "manifest.json"), "torn"), IsOk());
  EXPECT_THAT(ReadRunId(fs, kDirectory), IsOkAndHolds("0123456789abcdef"));
  fs.MutableContents(JoinPath(kDirectory, "shard_00000_of_00001.bin"))->resize(100);
  EXPECT_THAT(ReadRunId(fs, kDirectory), StatusIs(absl::StatusCode::kNotFound));
}

TEST(CheckpointDirectoryTest, RemovesACheckpointsFilesAndTheManifestLast) {
  MemoryFileSystem fs;
  WriteShardOf(fs, "0123456789abcdef");
  ASSERT_THAT(WriteAndSync(fs, JoinPath(kDirectory, "manifest.json"), "x"), IsOk());
  EXPECT_THAT(RemoveCheckpointDirectory(fs, kDirectory), IsOk());
  EXPECT_THAT(fs.List("/save"), IsOkAndHolds(ElementsAre()));
  const int operations = fs.operation_count();
  EXPECT_EQ(fs.Describe(operations - 2), "remove '/save/iter_0000001/manifest.json'");
}

TEST(CheckpointDirectoryTest, RemovesNothingWhereAnyOtherFileIs) {
  MemoryFileSystem fs;
  WriteShardOf(fs, "0123456789abcdef");
  ASSERT_THAT(WriteAndSync(fs, JoinPath(kDirectory, "thesis.tex"), "x"), IsOk());
  EXPECT_THAT(RemoveCheckpointDirectory(fs, kDirectory),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(kDirectory)));
  EXPECT_THAT(fs.List(kDirectory),
              IsOkAndHolds(ElementsAre("shard_00000_of_00001.bin", "thesis.tex")));
}

TEST(CheckpointDirectoryTest, FollowsNoLink) {
  FileSystem& fs = PosixFileSystem();
  const std::string root = JoinPath(::testing::TempDir(), "FollowsNoLink");
  ASSERT_THAT(fs.RemoveTree(root), IsOk());
  ASSERT_THAT(fs.CreateDirs(JoinPath(root, "target")), IsOk());
  ASSERT_THAT(WriteAndSync(fs, JoinPath(root, "target/manifest.json"), "x"), IsOk());
  ASSERT_EQ(symlink("target", JoinPath(root, "iter_0000001").c_str()), 0);
  EXPECT_FALSE(RemoveCheckpointDirectory(fs, JoinPath(root, "iter_0000001")).ok());
  EXPECT_THAT(fs.List(JoinPath(root, "target")), IsOkAndHolds(ElementsAre("manifest.json")));

  ASSERT_EQ(symlink("target/manifest.json", JoinPath(root, "manifest.json").c_str()), 0);
  EXPECT_FALSE(ReadManifest(fs, JoinPath(root, "manifest.json")).ok());
  EXPECT_THAT(fs.RemoveTree(root), IsOk());
}

TEST(CheckpointDirectoryTest, CreatesDirectoriesThatSurviveAPowerCut) {
  MemoryFileSystem fs;
  ASSERT_THAT(CreateDirsDurably(fs, "/a/b/c"), IsOk());
  const auto image = fs.CrashImage(fs.operation_count(), CrashModel::kLoseUnsynced, 0);
  EXPECT_THAT(image->Stat("/a/b/c"), IsOk());
}

}  // namespace
}  // namespace megatron
