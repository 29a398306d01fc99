#include "megatron/checkpoint/find_checkpoint.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "megatron/checkpoint/test_state.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kLatest[] = "/save/latest_checkpointed_iteration.txt";

class FindLatestCheckpointTest : public ::testing::Test {
 protected:
  void Save(int64_t iteration) {
    SaveOptions options;
    options.directory = "/save";
    ASSERT_THAT(SaveCheckpoint(fs_, options, TestState(iteration).Whole()), IsOk());
  }
  void FlipABitOf(const std::string& path) {
    std::string* const contents = fs_.MutableContents(path);
    contents->back() ^= 1;
  }

  MemoryFileSystem fs_;
};

TEST_F(FindLatestCheckpointTest, FindsTheOneThatTheLatestFileNames) {
  Save(10);
  Save(20);
  EXPECT_EQ(*ReadFileToString(fs_, kLatest), "20\n");
  auto found = FindLatestCheckpoint(fs_, "/save");
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->iteration, 20);
  EXPECT_EQ(found->directory, "/save/iter_0000020");
  EXPECT_THAT(found->warnings, IsEmpty());

  // The user goes back.
  ASSERT_THAT(WriteFileAtomically(fs_, kLatest, "10"), IsOk());
  EXPECT_EQ(FindLatestCheckpoint(fs_, "/save")->iteration, 10);
}

TEST_F(FindLatestCheckpointTest, AFreshStartIsNotFound) {
  EXPECT_THAT(FindLatestCheckpoint(fs_, "/save"),
              StatusIs(absl::StatusCode::kNotFound, "there is no directory '/save'"));
  ASSERT_THAT(fs_.CreateDirs("/save/tensorboard"), IsOk());
  ASSERT_THAT(fs_.CreateDirs("/save/iter_0000010.tmp"), IsOk());
  EXPECT_THAT(FindLatestCheckpoint(fs_, "/save"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(FindLatestCheckpointTest, AMissingOrGarbledLatestFileGivesTheNewestAndAWarning) {
  Save(10);
  Save(20);
  for (const char* text : {"", "garbage", "release", "-20", "99999999999999999999"}) {
    *fs_.MutableContents(kLatest) = text;
    const auto found = FindLatestCheckpoint(fs_, "/save");
    ASSERT_THAT(found, IsOk()) << text;
    EXPECT_EQ(found->iteration, 20);
    EXPECT_THAT(found->warnings, ElementsAre(HasSubstr(kLatest)));
  }
  ASSERT_THAT(fs_.Remove(kLatest), IsOk());
  const auto found = FindLatestCheckpoint(fs_, "/save");
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->iteration, 20);
  EXPECT_THAT(found->warnings, ElementsAre(HasSubstr(kLatest)));
}

TEST_F(FindLatestCheckpointTest, ALatestFileThatNamesNothingGivesTheNewestAndAWarning) {
  Save(10);
  ASSERT_THAT(WriteFileAtomically(fs_, kLatest, "30"), IsOk());
  const auto found = FindLatestCheckpoint(fs_, "/save");
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->iteration, 10);
  EXPECT_THAT(found->warnings, ElementsAre(HasSubstr("iteration 30")));
}

TEST_F(FindLatestCheckpointTest, ADamagedManifestFallsBackToTheOneBefore) {
  Save(10);
  Save(20);
  FlipABitOf("/save/iter_0000020/manifest.json");
  const auto found = FindLatestCheckpoint(fs_, "/save");
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->iteration, 10);
  EXPECT_THAT(found->warnings, ElementsAre(HasSubstr("/save/iter_0000020/manifest.json")));
}

TEST_F(FindLatestCheckpointTest, DamagedContentsAreFoundWhereAskedFor) {
  Save(10);
  Save(20);
  FlipABitOf("/save/iter_0000020/shard_00000_of_00001.bin");
  EXPECT_EQ(FindLatestCheckpoint(fs_, "/save", Check::kStructure)->iteration, 20);
  EXPECT_EQ(FindLatestCheckpoint(fs_, "/save", Check::kContents)->iteration, 10);
}

TEST_F(FindLatestCheckpointTest, NothingLeftToLoadIsDataLossAndNeverAFreshStart) {
  Save(10);
  FlipABitOf("/save/iter_0000010/manifest.json");
  EXPECT_THAT(FindLatestCheckpoint(fs_, "/save"),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("'/save'"), HasSubstr("iter_0000010/manifest.json"))));
  ASSERT_THAT(fs_.RemoveTree("/save/iter_0000010"), IsOk());
  EXPECT_THAT(FindLatestCheckpoint(fs_, "/save"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("iteration 10")));
}

TEST_F(FindLatestCheckpointTest, ACheckpointOfAnotherProgramIsNamed) {
  ASSERT_THAT(fs_.CreateDirs("/save/iter_0000010/mp_rank_00"), IsOk());
  ASSERT_THAT(WriteFileAtomically(fs_, kLatest, "10"), IsOk());
  EXPECT_THAT(FindLatestCheckpoint(fs_, "/save"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("manifest.json' is missing")));
}

TEST_F(FindLatestCheckpointTest, AnInterruptedReplacementIsFoundUnderItsOldName) {
  Save(10);
  ASSERT_THAT(fs_.Rename("/save/iter_0000010", "/save/iter_0000010.old"), IsOk());
  const auto found = FindLatestCheckpoint(fs_, "/save");
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->directory, "/save/iter_0000010.old");
}

}  // namespace
}  // namespace megatron
