#include "megatron/data/masked/t5_dataset.h"

#include <cstdint>
#include <memory>
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
using ::testing::ElementsAre;
using ::testing::HasSubstr;

WordPieces Pieces() {
  WordPieces pieces = CountingPieces();
  pieces.special.bos = 5;
  pieces.special.eos = 6;
  pieces.special.sentinels = {900, 901, 902};
  return pieces;
}

T5DatasetOptions Options() {
  auto options = CountingOptions<T5DatasetOptions>();
  options.seq_length = 20;
  options.decoder_seq_length = 12;
  return options;
}

absl::StatusOr<std::unique_ptr<T5Dataset>> Create(const T5DatasetOptions& options,
                                                  const WordPieces& pieces = Pieces()) {
  return CreateCountingDataset<T5Dataset>(pieces, options);
}

// Megatron-LM core 0.11 drew these samples.
TEST(T5DatasetTest, SpansAreMegatrons) {
  const auto dataset = Create(Options());
  ASSERT_THAT(dataset, IsOk());
  EXPECT_EQ((*dataset)->size(), 10);
  T5Sample sample;
  ASSERT_THAT((*dataset)->Get(2, &sample), IsOk());
  EXPECT_THAT(sample.encoder_tokens,
              ElementsAre(900, 9, 10, 11, 12, 13, 14, 15, 16, 901, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(sample.decoder_tokens, ElementsAre(5, 900, 8, 901, 17, 18, 19, 0, 0, 0, 0, 0));
  EXPECT_THAT(sample.labels, ElementsAre(900, 8, 901, 17, 18, 19, 6, -1, -1, -1, -1, -1));
  EXPECT_THAT(sample.loss_mask, ElementsAre(1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0));
  EXPECT_EQ(sample.num_encoder_tokens, 10);
  EXPECT_EQ(sample.num_decoder_tokens, 7);
  EXPECT_FALSE(sample.truncated);
}

TEST(T5DatasetTest, EncoderAndDecoderTokensTogetherAreTheText) {
  const auto dataset = Create(Options());
  ASSERT_THAT(dataset, IsOk());
  T5Sample sample;
  for (int64_t i = 0; i < (*dataset)->size(); ++i) {
    ASSERT_THAT((*dataset)->Get(i, &sample), IsOk());
    std::vector<int32_t> text;
    int32_t in_decoder = 1;
    for (int32_t k = 0; k < sample.num_encoder_tokens; ++k) {
      if (sample.encoder_tokens[k] < 900) {
        text.push_back(sample.encoder_tokens[k]);
        continue;
      }
      ASSERT_EQ(sample.decoder_tokens[in_decoder], sample.encoder_tokens[k]);
      while (++in_decoder < sample.num_decoder_tokens && sample.decoder_tokens[in_decoder] < 900)
        text.push_back(sample.decoder_tokens[in_decoder]);
    }
    EXPECT_EQ(in_decoder, sample.num_decoder_tokens);
    for (size_t k = 1; k < text.size(); ++k) EXPECT_EQ(text[k], text[k - 1] + 1);
  }
}

TEST(T5DatasetTest, SpansTooLongForTheDecoderStayInTheText) {
  T5DatasetOptions options = Options();
  options.decoder_seq_length = 6;
  const auto dataset = Create(options);
  ASSERT_THAT(dataset, IsOk());
  T5Sample sample;
  ASSERT_THAT((*dataset)->Get(2, &sample), IsOk());
  EXPECT_THAT(sample.decoder_tokens, ElementsAre(5, 900, 8, 0, 0, 0));
  EXPECT_THAT(sample.labels, ElementsAre(900, 8, 6, -1, -1, -1));
  EXPECT_EQ(sample.num_encoder_tokens, 12);
  EXPECT_EQ(sample.encoder_tokens[11], 19);
}

TEST(T5DatasetTest, SpansWithoutASentinelStayInTheText) {
  WordPieces pieces = Pieces();
  pieces.special.sentinels = {900};
  const auto dataset = Create(Options(), pieces);
  ASSERT_THAT(dataset, IsOk());
  T5Sample sample;
  ASSERT_THAT((*dataset)->Get(2, &sample), IsOk());
  EXPECT_EQ(sample.num_decoder_tokens, 3);
  EXPECT_EQ(sample.num_encoder_tokens, 12);
}

TEST(T5DatasetTest, TheDecoderBeginsWithPaddingIfThereIsNoBos) {
  WordPieces pieces = Pieces();
  pieces.special.bos = -1;
  const auto dataset = Create(Options(), pieces);
  ASSERT_THAT(dataset, IsOk());
  T5Sample sample;
  ASSERT_THAT((*dataset)->Get(2, &sample), IsOk());
  EXPECT_THAT(sample.decoder_tokens,
              ElementsAre(pieces.special.pad, 900, 8, 901, 17, 18, 19, 0, 0, 0, 0, 0));
}

TEST(T5DatasetTest, AVocabularyWithoutSentinelsIsRefused) {
  WordPieces pieces = Pieces();
  pieces.special.sentinels.clear();
  EXPECT_THAT(Create(Options(), pieces),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("vocab_extra_ids")));
  pieces = Pieces();
  pieces.special.eos = -1;
  EXPECT_THAT(Create(Options(), pieces),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("EOS")));
}

TEST(T5DatasetTest, ATokenOutsideTheVocabularyIsDataLoss) {
  WordPieces pieces = Pieces();
  pieces.continues_word.resize(30);
  const auto dataset = Create(Options(), pieces);
  ASSERT_THAT(dataset, IsOk());
  T5Sample sample;
  EXPECT_THAT((*dataset)->Get(1, &sample), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT((*dataset)->Get(10, &sample), StatusIs(absl::StatusCode::kOutOfRange));
}

TEST(T5DatasetTest, LengthsThatAreTooShortAreRefused) {
  T5DatasetOptions options = Options();
  options.decoder_seq_length = 2;
  EXPECT_THAT(Create(options), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(T5DatasetTest, MockDataNeedsNoFile) {
  const auto test = CreateMockDataset<T5Dataset>(Split::kTest, MockWordPieces(200, 20), Options());
  ASSERT_THAT(test, IsOk());
  T5Sample sample;
  ASSERT_THAT((*test)->Get(0, &sample), IsOk());
  EXPECT_EQ(sample.decoder_tokens[1], 180);
}

}  // namespace
}  // namespace megatron
