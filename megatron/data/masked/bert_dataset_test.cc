#include "megatron/data/masked/bert_dataset.h"

#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/masked/counting_documents.h"
#include "megatron/data/masked/mock_sentences.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

WordPieces Pieces() {
  WordPieces pieces = CountingPieces();
  pieces.special.mask = 4;
  return pieces;
}

BertDatasetOptions Options() {
  auto options = CountingOptions<BertDatasetOptions>();
  options.seq_length = 16;
  return options;
}

absl::StatusOr<std::unique_ptr<BertDataset>> Create(const BertDatasetOptions& options,
                                                    int32_t first_token = 8) {
  return CreateCountingDataset<BertDataset>(Pieces(), options, first_token);
}

// Megatron-LM core 0.11 drew these two samples.
TEST(BertDatasetTest, PairsAreMegatrons) {
  const auto dataset = Create(Options());
  ASSERT_THAT(dataset, IsOk());
  EXPECT_EQ((*dataset)->size(), 11);
  BertSample sample;
  ASSERT_THAT((*dataset)->Get(0, &sample), IsOk());
  EXPECT_THAT(sample.tokens, ElementsAre(1, 15, 16, 17, 18, 19, 2, 8, 9, 10, 11, 4, 4, 14, 2, 0));
  EXPECT_THAT(sample.types, ElementsAre(0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0));
  EXPECT_THAT(sample.labels,
              ElementsAre(-1, -1, -1, 17, -1, -1, -1, -1, -1, -1, -1, 12, 13, -1, -1, -1));
  EXPECT_THAT(sample.loss_mask, ElementsAre(0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0));
  EXPECT_EQ(sample.num_tokens, 15);
  EXPECT_TRUE(sample.is_random);
  EXPECT_FALSE(sample.truncated);
}

TEST(BertDatasetTest, SomeMaskedTokensBecomeRandomTokens) {
  const auto dataset = Create(Options());
  ASSERT_THAT(dataset, IsOk());
  BertSample sample;
  ASSERT_THAT((*dataset)->Get(1, &sample), IsOk());
  EXPECT_THAT(sample.tokens, ElementsAre(1, 4, 4, 463, 2, 41, 42, 43, 2, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(sample.labels,
              ElementsAre(-1, 38, 39, 40, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  EXPECT_FALSE(sample.is_random);
}

TEST(BertDatasetTest, ReadingASampleAgainGivesTheSameTokens) {
  const auto dataset = Create(Options());
  ASSERT_THAT(dataset, IsOk());
  BertSample first, again;
  ASSERT_THAT((*dataset)->Get(9, &first), IsOk());
  ASSERT_THAT((*dataset)->Get(2, &again), IsOk());
  ASSERT_THAT((*dataset)->Get(9, &again), IsOk());
  EXPECT_EQ(first.tokens, again.tokens);
  EXPECT_EQ(first.labels, again.labels);
  EXPECT_EQ(first.types, again.types);
}

TEST(BertDatasetTest, PiecesAreCutToTheTargetLength) {
  const auto dataset = Create(Options());
  ASSERT_THAT(dataset, IsOk());
  BertSample sample;
  std::set<bool> truncated;
  for (int64_t i = 0; i < (*dataset)->size(); ++i) {
    ASSERT_THAT((*dataset)->Get(i, &sample), IsOk());
    truncated.insert(sample.truncated);
    const int32_t target = (*dataset)->samples()[i].target_length;
    if (sample.truncated) {
      EXPECT_THAT(sample.num_tokens, ::testing::AnyOf(target + 3, target + 2));
    } else {
      EXPECT_LE(sample.num_tokens, target + 3);
    }
  }
  EXPECT_EQ(truncated.size(), 2u);
}

TEST(BertDatasetTest, SamplesHaveOnePieceWithoutAClassificationHead) {
  BertDatasetOptions options = Options();
  options.classification_head = false;
  options.documents = {1, 2};
  const auto dataset = Create(options);
  ASSERT_THAT(dataset, IsOk());
  BertSample sample;
  ASSERT_THAT((*dataset)->Get(0, &sample), IsOk());
  EXPECT_EQ(sample.num_tokens, 4);
  EXPECT_EQ(sample.tokens[3], 2);
  EXPECT_THAT(sample.types, Each(0));
  EXPECT_FALSE(sample.is_random);
}

TEST(BertDatasetTest, ATokenOutsideTheVocabularyIsDataLoss) {
  const auto dataset = Create(Options(), 995);
  ASSERT_THAT(dataset, IsOk());
  BertSample sample;
  EXPECT_THAT((*dataset)->Get(1, &sample),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("of sample 1 is outside")));
}

TEST(BertDatasetTest, ASampleThatDoesNotExistIsOutOfRange) {
  const auto dataset = Create(Options());
  ASSERT_THAT(dataset, IsOk());
  BertSample sample;
  EXPECT_THAT((*dataset)->Get(11, &sample), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT((*dataset)->Get(-1, &sample), StatusIs(absl::StatusCode::kOutOfRange));
}

TEST(BertDatasetTest, AVocabularyWithoutTheMaskTokenIsRefused) {
  WordPieces pieces = Pieces();
  pieces.special.mask = -1;
  EXPECT_THAT(CreateMockDataset<BertDataset>(Split::kTrain, pieces, Options()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[MASK]")));
}

TEST(BertDatasetTest, AShortSequenceIsRefused) {
  BertDatasetOptions options = Options();
  options.seq_length = 4;
  EXPECT_THAT(Create(options), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(BertDatasetTest, SplitsOfMockDataAreThirds) {
  const auto valid =
      CreateMockDataset<BertDataset>(Split::kValid, MockWordPieces(100, 0), Options());
  ASSERT_THAT(valid, IsOk());
  for (const SentenceSample& sample : (*valid)->samples()) {
    ASSERT_GE(sample.first_sentence, 3333 * 2);
  }
  BertSample sample;
  ASSERT_THAT((*valid)->Get(0, &sample), IsOk());
  EXPECT_EQ(sample.tokens.size(), 16u);
}

}  // namespace
}  // namespace megatron
