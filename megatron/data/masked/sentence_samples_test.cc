#include "megatron/data/masked/sentence_samples.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/gpt/in_memory_sequences.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Row = std::vector<int64_t>;

// The lengths of the sentences of each document.
using Documents = std::vector<std::vector<int32_t>>;

absl::StatusOr<std::vector<Row>> Rows(const Documents& documents, SentenceSampleOptions options) {
  std::vector<int32_t> lengths;
  std::vector<int64_t> bounds = {0};
  for (const std::vector<int32_t>& document : documents) {
    lengths.insert(lengths.end(), document.begin(), document.end());
    bounds.push_back(static_cast<int64_t>(lengths.size()));
  }
  if (options.documents.end == 0) options.documents = {0, static_cast<int64_t>(documents.size())};
  const auto samples = BuildSentenceSamples(
      options, [&](int64_t i) { return std::make_pair(bounds[i], bounds[i + 1]); },
      [&](int64_t i) { return lengths[i]; });
  if (!samples.ok()) return samples.status();
  std::vector<Row> rows;
  for (const SentenceSample& sample : *samples) {
    rows.push_back({sample.first_sentence, sample.first_sentence + sample.num_sentences,
                    sample.target_length});
  }
  return rows;
}

const Documents& Corpus() {
  static const auto* const documents =
      new Documents{{4, 3, 5}, {2}, {6, 2, 3, 4, 1}, {}, {3, 3}, {5, 600}};
  return *documents;
}

SentenceSampleOptions Options() {
  SentenceSampleOptions options;
  options.num_samples = 9;
  options.max_length = 13;
  options.short_sequence_probability = 0.5;
  options.min_sentences = 2;
  return options;
}

// Megatron-LM core 0.11 made these rows.
TEST(SentenceSamplesTest, PairsAreMegatrons) {
  const auto rows = Rows(Corpus(), Options());
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(*rows, ElementsAre(Row{0, 3, 13}, Row{9, 11, 13}, Row{0, 3, 13}, Row{4, 6, 8},
                                 Row{9, 11, 6}, Row{9, 11, 8}, Row{0, 3, 12}, Row{6, 9, 13},
                                 Row{4, 6, 8}, Row{6, 9, 2}, Row{4, 9, 13}));
}

TEST(SentenceSamplesTest, SingleSentencesAreMegatrons) {
  SentenceSampleOptions options = Options();
  options.max_length = 18;
  options.min_sentences = 1;
  const auto rows = Rows(Corpus(), options);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(*rows,
              ElementsAre(Row{9, 11, 16}, Row{4, 9, 18}, Row{0, 3, 18}, Row{7, 9, 9}, Row{0, 3, 18},
                          Row{9, 11, 18}, Row{3, 4, 7}, Row{4, 6, 7}, Row{3, 4, 6}, Row{6, 7, 2}));
}

TEST(SentenceSamplesTest, ThereIsOneEpochIfNoNumberOfSamplesIsGiven) {
  SentenceSampleOptions options = Options();
  options.num_samples = std::nullopt;
  options.short_sequence_probability = 0;
  const auto rows = Rows({{4, 3}, {5, 5, 5, 5}}, options);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(*rows, ::testing::UnorderedElementsAre(Row{0, 2, 13}, Row{2, 6, 13}));
}

TEST(SentenceSamplesTest, ASingleRemainingSentenceJoinsTheSampleBeforeIt) {
  SentenceSampleOptions options = Options();
  options.num_samples = std::nullopt;
  options.short_sequence_probability = 0;
  options.max_length = 4;
  const auto rows = Rows({{2, 2, 2}}, options);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(*rows, ElementsAre(Row{0, 3, 4}));
}

TEST(SentenceSamplesTest, OnlyDocumentsOfTheRangeAreUsed) {
  SentenceSampleOptions options = Options();
  options.documents = {4, 5};
  const auto rows = Rows(Corpus(), options);
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(*rows, SizeIs(9));
  EXPECT_THAT(*rows, Each(Each(::testing::Ge(2))));
  for (const Row& row : *rows) EXPECT_EQ(row[0], 9);
}

TEST(SentenceSamplesTest, DocumentsThatGiveNoSampleAreAnError) {
  EXPECT_THAT(Rows({{5}, {}, {3, 513}}, Options()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("none of 3 documents has at least 2 sentences")));
}

TEST(SentenceSamplesTest, OptionsOutOfRangeAreErrors) {
  SentenceSampleOptions options = Options();
  options.max_length = 1;
  EXPECT_THAT(Rows(Corpus(), options), StatusIs(absl::StatusCode::kInvalidArgument));
  options = Options();
  options.short_sequence_probability = 1.5;
  EXPECT_THAT(Rows(Corpus(), options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("short_seq_prob 1.5")));
  options = Options();
  options.num_samples = -1;
  EXPECT_THAT(Rows(Corpus(), options), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(SentenceSamplesTest, TextIsReadAcrossSentencesAndEmptySentences) {
  InMemorySequences corpus;
  corpus.Append({9});
  corpus.Append({1, 2, 3});
  corpus.Append({});
  corpus.Append({4, 5});
  std::vector<int32_t> text(3);
  ASSERT_THAT(ReadSentences(corpus, 1, 2, absl::MakeSpan(text)), IsOk());
  EXPECT_THAT(text, ElementsAre(3, 4, 5));
  ASSERT_THAT(ReadSentences(corpus, 1, 0, absl::MakeSpan(text)), IsOk());
  EXPECT_THAT(text, ElementsAre(1, 2, 3));
  text.resize(1);
  ASSERT_THAT(ReadSentences(corpus, 1, 4, absl::MakeSpan(text)), IsOk());
  EXPECT_THAT(text, ElementsAre(5));
}

TEST(SentenceSamplesTest, TheErrorNamesATokenOutsideTheVocabulary) {
  EXPECT_THAT(CheckSentenceTokens({1, 2, 9}, 10, 0), IsOk());
  EXPECT_THAT(CheckSentenceTokens({1, 10, 9}, 10, 7),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("token 10 at position 1 of the text of sample 7")));
  EXPECT_THAT(CheckSentenceTokens({-1}, 10, 7), StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace
}  // namespace megatron
