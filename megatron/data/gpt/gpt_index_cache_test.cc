#include "megatron/data/gpt/gpt_index_cache.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"

namespace megatron {

bool operator==(const StreamPosition& a, const StreamPosition& b) {
  return a.visit == b.visit && a.offset == b.offset;
}

namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

const std::vector<int32_t> kLengths = {5, 3, 7, 4, 6, 2, 9, 1};

int32_t Length(int64_t i) { return kLengths[i]; }

class GptIndexCacheTest : public ::testing::Test {
 protected:
  GptIndexCacheTest()
      : cache_(PosixFileSystem(),
               absl::StrCat(::testing::TempDir(), "/",
                            ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    options_.num_sequences = static_cast<int64_t>(kLengths.size());
    options_.seq_length = 4;
    options_.num_samples = 12;
    identity_.fingerprint = "37 tokens, crc32c 01234567";
  }

  std::string Key() const {
    const absl::StatusOr<GptIndexPlan> plan = PlanGptIndex(options_, Length);
    EXPECT_THAT(plan, IsOk());
    return cache_.PathOf(GptIndexKey(identity_, options_, *plan), "");
  }

  const IndexCache cache_;
  GptIndexOptions options_;
  GptIndexIdentity identity_;
};

TEST_F(GptIndexCacheTest, ALoadedIndexEqualsTheBuiltOne) {
  const absl::StatusOr<GptIndex> built = BuildGptIndex(options_, Length);
  const absl::StatusOr<GptIndex> stored = LoadOrBuildGptIndex(cache_, identity_, options_, Length);
  const absl::StatusOr<GptIndex> loaded = LoadOrBuildGptIndex(cache_, identity_, options_, Length);
  ASSERT_THAT(built, IsOk());
  for (const auto& index : {stored, loaded}) {
    ASSERT_THAT(index, IsOk());
    EXPECT_EQ(index->documents, built->documents);
    EXPECT_EQ(index->samples, built->samples);
    EXPECT_EQ(index->shuffle, built->shuffle);
    EXPECT_EQ(index->num_samples, built->num_samples);
    EXPECT_EQ(index->num_epochs, 2);
    EXPECT_TRUE(index->separate_final_epoch);
  }
  EXPECT_EQ(stored->documents.data() == loaded->documents.data(), false);
}

TEST_F(GptIndexCacheTest, EverythingThatDeterminesAnIndexIsInItsKey) {
  std::set<std::string> keys = {Key()};
  options_.seed = 5;
  EXPECT_TRUE(keys.insert(Key()).second);
  options_.seq_length = 5;
  EXPECT_TRUE(keys.insert(Key()).second);
  options_.num_samples = 1000;
  EXPECT_TRUE(keys.insert(Key()).second);
  options_.num_sequences = 7;
  EXPECT_TRUE(keys.insert(Key()).second);
  options_.num_sequences = 6;
  EXPECT_TRUE(keys.insert(Key()).second);
  options_.first_sequence = 2;
  EXPECT_TRUE(keys.insert(Key()).second);
  identity_.split = Split::kTest;
  EXPECT_TRUE(keys.insert(Key()).second);
  identity_.fingerprint = "37 tokens, crc32c 01234568";
  EXPECT_TRUE(keys.insert(Key()).second);
}

// The corpus has 37 tokens: 9 samples an epoch.
TEST_F(GptIndexCacheTest, RequestsForTheSameEpochsShareAnIndex) {
  options_.num_samples = 3;
  const std::string key = Key();
  options_.num_samples = 9;
  EXPECT_EQ(Key(), key);
  options_.num_samples.reset();
  EXPECT_EQ(Key(), key);
  options_.num_samples = 10;  // this needs a second epoch, but little of it
  const std::string apart = Key();
  EXPECT_NE(apart, key);
  options_.num_samples = 18;
  EXPECT_NE(Key(), apart);
}

TEST_F(GptIndexCacheTest, ARequestThatCannotBeMetIsAnErrorAndLeavesNothing) {
  options_.num_samples = -1;
  EXPECT_THAT(LoadOrBuildGptIndex(cache_, identity_, options_, Length),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
