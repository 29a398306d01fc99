#include "megatron/data/gpt/gpt_dataset.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/data/gpt/gpt_index_cache.h"
#include "megatron/data/gpt/in_memory_sequences.h"
#include "megatron/data/tokenizer/null_tokenizer.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kEod = 99;

// Makes documents of the reference lengths; token 10·d + p is at position p of document d.
std::shared_ptr<InMemorySequences> ReferenceDocuments() {
  auto documents = std::make_shared<InMemorySequences>();
  int32_t document = 0;
  for (const int length : {5, 3, 7, 4, 6, 2, 9, 1}) {
    std::vector<int32_t> tokens;
    for (int position = 0; position < length; ++position)
      tokens.push_back(10 * document + position);
    documents->Append(tokens);
    ++document;
  }
  return documents;
}

// Makes a single document, so that the stream equals the document.
std::shared_ptr<InMemorySequences> OneDocument(const std::vector<int32_t>& tokens) {
  auto documents = std::make_shared<InMemorySequences>();
  documents->Append(tokens);
  return documents;
}

GptDatasetOptions Options(const TokenSequences& sequences, int64_t seq_length) {
  GptDatasetOptions options;
  options.range = {0, sequences.num_sequences()};
  options.seq_length = seq_length;
  options.vocab_size = 100;
  options.eod = kEod;
  return options;
}

std::unique_ptr<GptDataset> Create(const std::shared_ptr<InMemorySequences>& sequences,
                                   const GptDatasetOptions& options) {
  absl::StatusOr<std::unique_ptr<GptDataset>> dataset = GptDataset::Create(sequences, options);
  EXPECT_THAT(dataset, IsOk());
  return *std::move(dataset);
}

TEST(GptDatasetTest, SamplesAreMegatrons) {
  const auto documents = ReferenceDocuments();
  const auto dataset = Create(documents, Options(*documents, 4));
  // The order of visits is 2 1 6 0 4 5 3 7, that of samples 6 4 0 5 3 2 8 7 1.
  ASSERT_EQ(dataset->size(), 9);
  Sample sample;
  ASSERT_THAT(dataset->Get(0, &sample), IsOk());
  EXPECT_THAT(sample.tokens, ElementsAre(40, 41, 42, 43));
  EXPECT_THAT(sample.labels, ElementsAre(41, 42, 43, 44));
  EXPECT_THAT(sample.loss_mask, ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(sample.positions, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(sample.document_starts, ElementsAre(0));
  // This sample spans the end of one document and the beginning of the next: sample 1 of the
  // stream, from (0, 4).
  ASSERT_THAT(dataset->Get(8, &sample), IsOk());
  EXPECT_THAT(sample.tokens, ElementsAre(24, 25, 26, 10));
  EXPECT_THAT(sample.labels, ElementsAre(25, 26, 10, 11));
  // The last sample of the stream ends with its last token.
  ASSERT_THAT(dataset->Get(6, &sample), IsOk());
  EXPECT_THAT(sample.tokens, ElementsAre(30, 31, 32, 33));
  EXPECT_THAT(sample.labels, ElementsAre(31, 32, 33, 70));
}

TEST(GptDatasetTest, EverySampleBeginsWithTheLastLabelOfTheSampleBefore) {
  const auto documents = ReferenceDocuments();
  GptDatasetOptions options = Options(*documents, 3);
  options.num_samples = 40;
  const auto dataset = Create(documents, options);
  std::vector<Sample> samples(dataset->size());
  for (int64_t i = 0; i < dataset->size(); ++i) {
    ASSERT_THAT(dataset->Get(i, &samples[dataset->index().shuffle[i]]), IsOk());
  }
  for (size_t k = 1; k < samples.size(); ++k)
    EXPECT_EQ(samples[k].tokens[0], samples[k - 1].labels.back());
}

TEST(GptDatasetTest, OnlySequencesOfTheRangeAreRead) {
  const auto documents = ReferenceDocuments();
  GptDatasetOptions options = Options(*documents, 2);
  options.range = {2, 4};
  options.num_samples = 30;
  const auto dataset = Create(documents, options);
  Sample sample;
  for (int64_t i = 0; i < dataset->size(); ++i) {
    ASSERT_THAT(dataset->Get(i, &sample), IsOk());
    EXPECT_THAT(sample.labels, Each(AllOf(testing::Ge(20), testing::Lt(40))));
  }
}

TEST(GptDatasetTest, EodHasNoEffectByDefault) {
  const auto documents = OneDocument({1, kEod, 2, kEod, 3});
  Sample sample;
  ASSERT_THAT(Create(documents, Options(*documents, 4))->Get(0, &sample), IsOk());
  EXPECT_THAT(sample.loss_mask, ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(sample.positions, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(sample.document_starts, ElementsAre(0));
}

TEST(GptDatasetTest, EodMaskLossMasksThePredictionAfterAnEod) {
  const auto documents = OneDocument({1, kEod, 2, kEod, 3});
  GptDatasetOptions options = Options(*documents, 4);
  options.eod_mask_loss = true;
  Sample sample;
  ASSERT_THAT(Create(documents, options)->Get(0, &sample), IsOk());
  EXPECT_THAT(sample.loss_mask, ElementsAre(1, 0, 1, 0));
  EXPECT_THAT(sample.positions, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(sample.document_starts, ElementsAre(0));
}

TEST(GptDatasetTest, ResetPositionIdsRestartsPositionsAfterEachEod) {
  const auto documents = OneDocument({1, 2, kEod, 3, 4, kEod, kEod, 5, 6});
  GptDatasetOptions options = Options(*documents, 8);
  options.reset_position_ids = true;
  Sample sample;
  ASSERT_THAT(Create(documents, options)->Get(0, &sample), IsOk());
  EXPECT_THAT(sample.positions, ElementsAre(0, 1, 2, 0, 1, 2, 0, 0));
  EXPECT_THAT(sample.document_starts, ElementsAre(0));
}

TEST(GptDatasetTest, ResetAttentionMaskStartsADocumentAfterEachEod) {
  const auto documents = OneDocument({kEod, 2, kEod, 3, 4, kEod, 6});
  GptDatasetOptions options = Options(*documents, 6);
  options.reset_attention_mask = true;
  Sample sample;
  ASSERT_THAT(Create(documents, options)->Get(0, &sample), IsOk());
  EXPECT_THAT(sample.tokens, ElementsAre(kEod, 2, kEod, 3, 4, kEod));
  // No document starts after the last position.
  EXPECT_THAT(sample.document_starts, ElementsAre(0, 1, 3));
  EXPECT_THAT(sample.positions, ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(GptDatasetTest, AReusedSampleKeepsItsMemory) {
  const auto documents = ReferenceDocuments();
  GptDatasetOptions options = Options(*documents, 4);
  options.reset_attention_mask = options.reset_position_ids = options.eod_mask_loss = true;
  options.eod = 41;
  const auto dataset = Create(documents, options);
  Sample sample;
  ASSERT_THAT(dataset->Get(0, &sample), IsOk());
  const auto addresses = [&] {
    return std::vector<const void*>{sample.tokens.data(), sample.labels.data(),
                                    sample.loss_mask.data(), sample.positions.data(),
                                    sample.document_starts.data()};
  };
  const std::vector<const void*> first = addresses();
  for (int64_t i = 0; i < dataset->size(); ++i) {
    ASSERT_THAT(dataset->Get(i, &sample), IsOk());
    EXPECT_EQ(addresses(), first);
  }
}

TEST(GptDatasetTest, TheErrorNamesATokenOutsideTheVocabulary) {
  for (const int32_t bad : {100, -1}) {
    const auto documents = OneDocument({1, 2, bad, 4, 5});
    Sample sample;
    EXPECT_THAT(Create(documents, Options(*documents, 4))->Get(0, &sample),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr(absl::StrCat("token ", bad, " at position 2")),
                               HasSubstr("of 100"))));
  }
}

// Tokens are numbers spelled as text; a cut inside of one makes two others.
TEST(GptDatasetTest, FillInTheMiddleRewritesSamplesSeededByTheirNumbers) {
  std::vector<int32_t> text;
  for (int32_t i = 100; i < 700; ++i) text.push_back(i);
  const auto document = OneDocument(text);
  GptDatasetOptions options = Options(*document, 11);
  options.vocab_size = 1000;
  options.eod = 999;
  const auto plain = Create(document, options);
  FillInTheMiddleOptions fim;
  fim.rate = 0.8;
  fim.prefix_token = "901";
  fim.middle_token = "902";
  fim.suffix_token = "903";
  fim.pad_token = "904";
  fim.eod_token = "999";
  const auto tokenizer = std::make_shared<const NullTokenizer>(1000);
  const absl::StatusOr<FillInTheMiddle> fill = FillInTheMiddle::Create(tokenizer, fim);
  ASSERT_THAT(fill, IsOk());
  options.fill_in_the_middle = std::make_shared<const FillInTheMiddle>(*fill);
  const auto dataset = Create(document, options);
  Sample sample;
  int rewritten = 0;
  for (int64_t i = dataset->size() - 1; i >= 0; --i) {
    ASSERT_THAT(plain->Get(i, &sample), IsOk());
    std::vector<int32_t> expected = sample.tokens;
    expected.push_back(sample.labels.back());
    const std::vector<int32_t> before = expected;
    const auto num_tokens = fill->Apply(i, absl::MakeSpan(expected));
    ASSERT_THAT(num_tokens, IsOk());
    ASSERT_THAT(dataset->Get(i, &sample), IsOk());
    rewritten += expected != before;
    for (int64_t p = 0; p < 11; ++p) {
      EXPECT_EQ(sample.tokens[p], expected[p]);
      EXPECT_EQ(sample.labels[p], expected[p + 1]);
      EXPECT_EQ(sample.loss_mask[p], p + 1 < *num_tokens ? 1.0f : 0.0f);
    }
  }
  EXPECT_GT(rewritten, 30);
  EXPECT_LT(rewritten, dataset->size());
}

// The checksums of these files are right, but their numbers are invalid positions.
TEST(GptDatasetTest, NumbersOfACachedIndexAreCheckedBeforeUse) {
  const auto documents = ReferenceDocuments();
  GptDatasetOptions options = Options(*documents, 4);
  GptIndexOptions index_options;
  index_options.num_sequences = 8;
  index_options.seq_length = 4;
  const absl::StatusOr<GptIndex> good =
      BuildGptIndex(index_options, [&](int64_t i) { return documents->SequenceLength(i); });
  ASSERT_THAT(good, IsOk());
  const IndexCacheKey key = GptIndexKey(options.identity, index_options, *good);
  const IndexCache cache(PosixFileSystem(), ::testing::TempDir() + "/hostile_cache");
  options.cache = &cache;
  for (const int64_t bad :
       {int64_t{-1}, int64_t{8}, int64_t{10}, int64_t{INT32_MAX}, int64_t{INT32_MIN}}) {
    for (const int array : {0, 1, 2, 3}) {
      std::vector<int32_t> visits(good->documents.begin(), good->documents.end());
      std::vector<StreamPosition> samples(good->samples.begin(), good->samples.end());
      std::vector<uint32_t> shuffle(good->shuffle.begin(), good->shuffle.end());
      const int32_t number = static_cast<int32_t>(bad);
      if (array == 0) std::fill(visits.begin(), visits.end(), number);
      if (array == 1) std::fill(samples.begin(), samples.end(), StreamPosition{number, 0});
      if (array == 2) std::fill(samples.begin(), samples.end(), StreamPosition{0, number});
      if (array == 3) std::fill(shuffle.begin(), shuffle.end(), static_cast<uint32_t>(number));
      const IndexArrays arrays = {{{"<i4", {8}, ArrayBytes(absl::MakeConstSpan(visits))},
                                   {"<i4", {10, 2}, ArrayBytes(absl::MakeConstSpan(samples))},
                                   {"<u4", {9}, ArrayBytes(absl::MakeConstSpan(shuffle))}},
                                  nullptr};
      ASSERT_THAT(cache.Store(key, arrays), IsOk());
      const auto dataset = Create(documents, options);
      ASSERT_EQ(dataset->size(), 9);
      Sample sample;
      for (int64_t i = 0; i < 9; ++i) {
        const absl::Status status = dataset->Get(i, &sample);
        const bool is_a_sample = array == 3 && bad == 8;
        EXPECT_EQ(status.code(), is_a_sample ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss);
      }
    }
  }
}

TEST(GptDatasetTest, ASampleThatDoesNotExistIsAnError) {
  const auto documents = ReferenceDocuments();
  const auto dataset = Create(documents, Options(*documents, 4));
  ASSERT_EQ(dataset->size(), 9);
  for (const int64_t index : {int64_t{-1}, int64_t{9}, INT64_MAX}) {
    Sample sample;
    EXPECT_THAT(dataset->Get(index, &sample),
                StatusIs(absl::StatusCode::kOutOfRange,
                         AllOf(HasSubstr(absl::StrCat("sample ", index, " ")),
                               HasSubstr("has 9 samples"))));
  }
}

TEST(GptDatasetTest, AnEmptyVocabularyIsRefused) {
  const auto documents = ReferenceDocuments();
  GptDatasetOptions options = Options(*documents, 4);
  options.vocab_size = 0;
  EXPECT_THAT(GptDataset::Create(documents, options), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(MockGptDatasetTest, SplitsAreThirdsOfMegatronsMockDocuments) {
  GptDatasetOptions options;
  options.seq_length = 16;
  options.num_samples = 5;
  options.vocab_size = 128;
  options.eod = 127;
  int64_t tokens = 0;
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    absl::StatusOr<std::unique_ptr<GptDataset>> dataset = CreateMockGptDataset(split, options);
    ASSERT_THAT(dataset, IsOk());
    EXPECT_THAT((*dataset)->index().documents.size(), testing::AnyOf(33333u, 33334u));
    tokens += (*dataset)->index().tokens_per_epoch;
    Sample sample;
    ASSERT_THAT((*dataset)->Get(0, &sample), IsOk());
    // Documents count upwards, so nearly every label is its token plus one.
    int successors = 0;
    for (size_t i = 0; i < sample.tokens.size(); ++i)
      successors += sample.labels[i] == sample.tokens[i] + 1;
    EXPECT_GE(successors, 13);
  }
  EXPECT_EQ(tokens, 204637097);
}

TEST(MockGptDatasetTest, ASampleThatDoesNotExistIsAnError) {
  GptDatasetOptions options;
  options.seq_length = 16;
  options.num_samples = 5;
  options.vocab_size = 128;
  options.eod = 127;
  const absl::StatusOr<std::unique_ptr<GptDataset>> dataset =
      CreateMockGptDataset(Split::kTest, options);
  ASSERT_THAT(dataset, IsOk());
  Sample sample;
  EXPECT_THAT((*dataset)->Get((*dataset)->size() - 1, &sample), IsOk());
  EXPECT_THAT((*dataset)->Get((*dataset)->size(), &sample),
              StatusIs(absl::StatusCode::kOutOfRange,
                       HasSubstr(absl::StrCat((*dataset)->size(), " samples"))));
}

}  // namespace
}  // namespace megatron
