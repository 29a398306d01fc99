#include "megatron/data/masked/sentence_sample_cache.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/data/npy.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;

// Document d has d % 4 + 1 sentences, and the documents follow each other; sentence i has 3 + i % 9
// tokens.
class SentenceSampleCacheTest : public ::testing::Test {
 protected:
  SentenceSampleCacheTest() {
    EXPECT_THAT(PosixFileSystem().RemoveTree(folder_), IsOk());
    for (int64_t d = 0, sentence = first_sentence_; d < 20; ++d) {
      documents_.emplace_back(sentence, sentence + d % 4 + 1);
      sentence += d % 4 + 1;
    }
    options_.documents = {0, 20};
    options_.max_length = 30;
    options_.num_samples = 50;
    options_.short_sequence_probability = 0.3;
    where_.cache = &cache_;
    where_.fingerprint = "7 tokens";
  }

  absl::StatusOr<std::vector<SentenceSample>> Get() {
    return LoadOrBuildSentenceSamples(
        "BERTMaskedWordPieceDataset", where_, options_,
        [this](int64_t d) {
          ++calls_;
          return documents_[static_cast<size_t>(d)];
        },
        [](int64_t i) { return static_cast<int32_t>(3 + i % 9); });
  }
  // Returns a list as text, for comparisons.
  static std::string Text(const absl::StatusOr<std::vector<SentenceSample>>& samples) {
    if (!samples.ok()) return samples.status().ToString();
    std::string text;
    for (const SentenceSample& sample : *samples) {
      absl::StrAppend(&text, sample.first_sentence, " ", sample.num_sentences, " ",
                      sample.target_length, "\n");
    }
    return text;
  }
  std::string Built() {
    const IndexCache* const cache = std::exchange(where_.cache, nullptr);
    const std::string text = Text(Get());
    where_.cache = cache;
    return text;
  }
  IndexCacheKey Key() const {
    return SentenceSampleKey("BERTMaskedWordPieceDataset", where_, options_);
  }

  int64_t first_sentence_ = 5;
  const std::string folder_ = ::testing::TempDir() + "/sentence_sample_cache";
  IndexCache cache_{PosixFileSystem(), folder_};
  std::vector<std::pair<int64_t, int64_t>> documents_;
  SentenceSampleOptions options_;
  SentenceSampleCache where_;
  int calls_ = 0;
};

TEST_F(SentenceSampleCacheTest, ALoadedListEqualsTheBuiltOne) {
  const std::string expected = Built();
  EXPECT_EQ(Text(Get()), expected);
  calls_ = 0;
  EXPECT_EQ(Text(Get()), expected);
  EXPECT_EQ(calls_, 0);
}

// Megatron's file has rows of u4; the second number is one past the last sentence.
TEST_F(SentenceSampleCacheTest, RowsOfTheFileAreMegatrons) {
  const auto samples = Get();
  ASSERT_THAT(samples, IsOk());
  const std::string path = cache_.PathOf(Key(), "sample_index.npy");
  EXPECT_THAT(path, ::testing::HasSubstr("-BERTMaskedWordPieceDataset-sample_index.npy"));
  const auto bytes = ReadFileToString(PosixFileSystem(), path);
  ASSERT_THAT(bytes, IsOk());
  const auto array = ParseNpy(*bytes);
  ASSERT_THAT(array, IsOk());
  EXPECT_EQ(array->type, "<u4");
  EXPECT_THAT(array->shape, ElementsAre(static_cast<int64_t>(samples->size()), 3));
  const absl::Span<const uint32_t> rows = ArrayValues<uint32_t>(*array);
  for (size_t i = 0; i < samples->size(); ++i) {
    const SentenceSample& sample = (*samples)[i];
    EXPECT_THAT(rows.subspan(3 * i, 3),
                ElementsAre(sample.first_sentence, sample.first_sentence + sample.num_sentences,
                            sample.target_length));
  }
}

TEST_F(SentenceSampleCacheTest, ManySentencesTakeWideRows) {
  for (auto& [begin, end] : documents_) {
    begin += int64_t{1} << 32;
    end += int64_t{1} << 32;
  }
  const std::string expected = Built();
  EXPECT_EQ(Text(Get()), expected);
  calls_ = 0;
  EXPECT_EQ(Text(Get()), expected);
  EXPECT_EQ(calls_, 0);
}

TEST_F(SentenceSampleCacheTest, EverythingThatDeterminesTheListIsInItsKey) {
  const std::vector<std::function<void()>> changes = {
      [&] { where_.fingerprint = "8 tokens"; }, [&] { where_.split = Split::kValid; },
      [&] { options_.documents.begin = 1; },    [&] { options_.documents.end = 19; },
      [&] { options_.num_samples = 51; },       [&] { options_.num_samples = std::nullopt; },
      [&] { options_.max_length = 31; },        [&] { options_.short_sequence_probability = 0.31; },
      [&] { options_.min_sentences = 2; },      [&] { options_.seed = 7; }};
  const SentenceSampleOptions options = options_;
  const SentenceSampleCache where = where_;
  const std::string description = Key().description;
  for (size_t i = 0; i < changes.size(); ++i) {
    options_ = options;
    where_ = where;
    changes[i]();
    EXPECT_NE(Key().description, description) << i;
    EXPECT_EQ(Text(Get()), Built()) << i;
  }
}

TEST_F(SentenceSampleCacheTest, ATornFileIsBuiltAgainAndBuildErrorsAreReturned) {
  const std::string expected = Text(Get());
  const std::string path = cache_.PathOf(Key(), "sample_index.npy");
  std::string bytes = *ReadFileToString(PosixFileSystem(), path);
  bytes.back() ^= 1;
  ASSERT_THAT(WriteFileAtomically(PosixFileSystem(), path, bytes), IsOk());
  calls_ = 0;
  EXPECT_EQ(Text(Get()), expected);
  EXPECT_GT(calls_, 0);
  calls_ = 0;
  EXPECT_EQ(Text(Get()), expected);
  EXPECT_EQ(calls_, 0);
  options_.min_sentences = 9;
  EXPECT_THAT(Get(), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
