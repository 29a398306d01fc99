#include "megatron/data/gpt/gpt_index.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<GptIndex> Build(const std::vector<int32_t>& lengths, int64_t seq_length,
                               std::optional<int64_t> num_samples) {
  GptIndexOptions options;
  options.num_sequences = static_cast<int64_t>(lengths.size());
  options.seq_length = seq_length;
  options.seed = 1234;
  options.num_samples = num_samples;
  return BuildGptIndex(options, [&](int64_t i) { return lengths[i]; });
}

std::vector<std::pair<int, int>> Samples(const GptIndex& index) {
  std::vector<std::pair<int, int>> samples;
  for (const StreamPosition& position : index.samples)
    samples.push_back({position.visit, position.offset});
  return samples;
}

using Pairs = std::vector<std::pair<int, int>>;

// Megatron-LM computes the three reference cases below for documents of these lengths.
const std::vector<int32_t>& ReferenceLengths() {
  static const auto& lengths = *new std::vector<int32_t>{5, 3, 7, 4, 6, 2, 9, 1};
  return lengths;
}

TEST(GptIndexTest, OneEpochIsOrderedAsInMegatron) {
  for (const std::optional<int64_t> num_samples :
       {std::optional<int64_t>(), std::optional<int64_t>(8)}) {
    const absl::StatusOr<GptIndex> index = Build(ReferenceLengths(), 4, num_samples);
    ASSERT_THAT(index, IsOk());
    EXPECT_EQ(index->tokens_per_epoch, 37);
    EXPECT_EQ(index->num_epochs, 1);
    EXPECT_FALSE(index->separate_final_epoch);
    EXPECT_THAT(index->documents, ElementsAre(2, 1, 6, 0, 4, 5, 3, 7));
    EXPECT_EQ(
        Samples(*index),
        (Pairs{{0, 0}, {0, 4}, {1, 1}, {2, 2}, {2, 6}, {3, 1}, {4, 0}, {4, 4}, {6, 0}, {7, 0}}));
    EXPECT_THAT(index->shuffle, ElementsAre(6, 4, 0, 5, 3, 2, 8, 7, 1));
  }
}

TEST(GptIndexTest, AFinalEpochOfFewSamplesIsShuffledOnItsOwnAsInMegatron) {
  const absl::StatusOr<GptIndex> index = Build(ReferenceLengths(), 4, 12);
  ASSERT_THAT(index, IsOk());
  EXPECT_EQ(index->num_epochs, 2);
  EXPECT_TRUE(index->separate_final_epoch);
  EXPECT_THAT(index->documents, ElementsAre(2, 1, 6, 0, 4, 5, 3, 7, 5, 0, 3, 4, 2, 6, 1, 7));
  EXPECT_EQ(Samples(*index), (Pairs{{0, 0},
                                    {0, 4},
                                    {1, 1},
                                    {2, 2},
                                    {2, 6},
                                    {3, 1},
                                    {4, 0},
                                    {4, 4},
                                    {6, 0},
                                    {7, 0},
                                    {9, 1},
                                    {10, 0},
                                    {11, 0},
                                    {11, 4},
                                    {12, 2},
                                    {12, 6},
                                    {13, 3},
                                    {13, 7},
                                    {14, 2}}));
  EXPECT_THAT(index->shuffle,
              ElementsAre(7, 3, 5, 1, 4, 8, 0, 2, 6, 16, 13, 10, 14, 12, 9, 11, 17, 15));
}

TEST(GptIndexTest, AFinalEpochOfManySamplesIsShuffledWithTheOthersAsInMegatron) {
  const absl::StatusOr<GptIndex> index = Build(ReferenceLengths(), 4, 16);
  ASSERT_THAT(index, IsOk());
  EXPECT_EQ(index->num_epochs, 2);
  EXPECT_FALSE(index->separate_final_epoch);
  EXPECT_THAT(index->documents, ElementsAre(5, 3, 0, 4, 6, 2, 2, 7, 1, 1, 0, 4, 5, 6, 3, 7));
  EXPECT_EQ(Samples(*index), (Pairs{{0, 0},
                                    {1, 2},
                                    {2, 2},
                                    {3, 1},
                                    {3, 5},
                                    {4, 3},
                                    {4, 7},
                                    {5, 2},
                                    {5, 6},
                                    {6, 3},
                                    {7, 0},
                                    {9, 0},
                                    {10, 1},
                                    {11, 0},
                                    {11, 4},
                                    {13, 0},
                                    {13, 4},
                                    {13, 8},
                                    {14, 3}}));
  EXPECT_THAT(index->shuffle,
              ElementsAre(7, 10, 4, 1, 11, 8, 3, 14, 13, 12, 17, 15, 2, 6, 9, 0, 5, 16));
}

TEST(GptIndexTest, SamplesCoverTheStreamWithoutGapsForAllLengths) {
  // The list has empty sequences, sequences of one token, and sequences longer than several
  // samples.
  const std::vector<int32_t> lengths = {0, 1, 0, 40, 3, 0, 1, 1, 17, 0};
  for (int64_t seq_length = 1; seq_length <= 20; ++seq_length) {
    for (const int64_t num_samples : {1, 9, 50}) {
      const absl::StatusOr<GptIndex> index = Build(lengths, seq_length, num_samples);
      ASSERT_THAT(index, IsOk());
      EXPECT_GE(index->num_samples, num_samples);
      std::vector<int64_t> begins = {0};  // beginnings of the visits in the stream
      for (const int32_t document : index->documents)
        begins.push_back(begins.back() + lengths[document]);
      for (size_t k = 0; k < index->samples.size(); ++k) {
        const StreamPosition at = index->samples[k];
        EXPECT_EQ(begins[at.visit] + at.offset, static_cast<int64_t>(k) * seq_length);
        EXPECT_LT(k == 0 ? 0 : at.offset, k == 0 ? 1 : lengths[index->documents[at.visit]]);
      }
      EXPECT_LE(index->num_samples * seq_length + 1, begins.back());
    }
  }
}

TEST(GptIndexTest, IndexHoldsSequenceNumbersOfTheDataset) {
  GptIndexOptions options;
  options.num_sequences = 8;
  options.seq_length = 4;
  const absl::StatusOr<GptIndex> expected = Build(ReferenceLengths(), 4, std::nullopt);
  options.first_sequence = 100;
  const absl::StatusOr<GptIndex> index =
      BuildGptIndex(options, [](int64_t i) { return ReferenceLengths()[i - 100]; });
  ASSERT_THAT(index, IsOk());
  EXPECT_THAT(index->documents, ElementsAre(102, 101, 106, 100, 104, 105, 103, 107));
  EXPECT_EQ(Samples(*index), Samples(*expected));
  EXPECT_EQ(index->shuffle, expected->shuffle);
  options.first_sequence = INT32_MAX - 7;
  EXPECT_THAT(BuildGptIndex(options, [](int64_t) { return 9; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("32 bits")));
}

TEST(GptIndexTest, ACorpusTooSmallForOneSampleIsAnError) {
  EXPECT_THAT(Build({2, 2}, 4, std::nullopt),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 tokens")));
  EXPECT_THAT(Build({}, 4, 10), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Build({0, 0}, 4, 10), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(GptIndexTest, ASmallCorpusIsRepeatedForEnoughSamples) {
  const absl::StatusOr<GptIndex> index = Build({2, 2}, 4, 3);
  ASSERT_THAT(index, IsOk());
  EXPECT_EQ(index->num_epochs, 4);
  EXPECT_EQ(index->num_samples, 3);
}

TEST(GptIndexTest, RequestsTooLargeForTheIndexTypesAreErrorsAndAllocateNothing) {
  EXPECT_THAT(Build({2, 2}, 4, int64_t{1} << 40), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Build({2, 2}, 4, INT64_MAX), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Build({2, 2}, 4, -1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Build({2, 2}, 0, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Build({INT32_MAX, INT32_MAX, INT32_MAX}, 1, std::nullopt),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
