#include "megatron/data/masked/bert_dataset.h"

#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/gpt/in_memory_sequences.h"
#include "megatron/data/masked/mock_sentences.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kVocabSize = 1000;

// Ids that are 3 modulo 4 continue words.
WordPieces Pieces() {
  WordPieces pieces;
  pieces.special.pad = 0;
  pieces.special.cls = 1;
  pieces.special.sep = 2;
  pieces.special.mask = 4;
  pieces.continues_word.resize(kVocabSize);
  for (size_t id = 3; id < kVocabSize; id += 4) pieces.continues_word[id] = true;
  return pieces;
}

BertDatasetOptions Options() {
  BertDatasetOptions options;
  options.documents = {0, 6};
  options.seq_length = 16;
  options.num_samples = 9;
  options.short_sequence_probability = 0.5;
  options.masking.probability = 0.3;
  return options;
}

// Documents of sentences of these lengths, whose tokens count from 8 on.
absl::StatusOr<std::unique_ptr<BertDataset>> Create(const BertDatasetOptions& options,
                                                    int32_t first_token = 8) {
  const std::vector<std::vector<int32_t>> documents = {{4, 3, 5}, {2},    {6, 2, 3, 4, 1},
                                                       {},        {3, 3}, {5, 600}};
  auto corpus = std::make_shared<InMemorySequences>();
  std::vector<int64_t> bounds = {0};
  int32_t next = 0;
  for (const std::vector<int32_t>& document : documents) {
    for (const int32_t length : document) {
      std::vector<int32_t> sentence(length);
      for (int32_t& token : sentence) token = first_token + next++ % 800;
      corpus->Append(sentence);
    }
    bounds.push_back(corpus->num_sequences());
  }
  return BertDataset::Create(
      corpus, [&](int64_t i) { return std::make_pair(bounds[i], bounds[i + 1]); }, Pieces(),
      options);
}

// These two were drawn by Megatron-LM core 0.11.
TEST(BertDatasetTest, DrawsThePairsThatMegatronDraws) {
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

TEST(BertDatasetTest, SomeMaskedTokensBecomeRandomOnes) {
  const auto dataset = Create(Options());
  ASSERT_THAT(dataset, IsOk());
  BertSample sample;
  ASSERT_THAT((*dataset)->Get(1, &sample), IsOk());
  EXPECT_THAT(sample.tokens, ElementsAre(1, 4, 4, 463, 2, 41, 42, 43, 2, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(sample.labels,
              ElementsAre(-1, 38, 39, 40, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  EXPECT_FALSE(sample.is_random);
}

TEST(BertDatasetTest, ASampleIsTheSameWheneverItIsRead) {
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

TEST(BertDatasetTest, WithoutAClassificationHeadThereIsOnePieceInOrder) {
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

TEST(BertDatasetTest, AVocabularyWithoutMaskIsRefused) {
  WordPieces pieces = Pieces();
  pieces.special.mask = -1;
  EXPECT_THAT(CreateMockBertDataset(Split::kTrain, pieces, Options()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[MASK]")));
}

TEST(BertDatasetTest, AShortSequenceIsRefused) {
  BertDatasetOptions options = Options();
  options.seq_length = 4;
  EXPECT_THAT(Create(options), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(BertDatasetTest, MockSplitsAreThirds) {
  const auto valid = CreateMockBertDataset(Split::kValid, MockWordPieces(100, 0), Options());
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
