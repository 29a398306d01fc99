#include "megatron/data/masked/t5_source.h"

#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/masked/mock_sentences.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

std::unique_ptr<T5Dataset> Dataset() {
  T5DatasetOptions options;
  options.seq_length = 64;
  options.decoder_seq_length = 32;
  options.num_samples = 50;
  auto dataset = CreateMockDataset<T5Dataset>(Split::kTrain, MockWordPieces(200, 20), options);
  EXPECT_THAT(dataset, IsOk());
  return *std::move(dataset);
}

TEST(T5SourceTest, SamplesAreThoseOfTheDatasetWithoutPadding) {
  const std::unique_ptr<T5Dataset> dataset = Dataset();
  const T5Source source(Dataset());
  ASSERT_EQ(source.size(), dataset->size());
  bool short_text = false, short_gaps = false;
  Sample sample;  // reused for all samples
  for (int64_t i = 0; i < 50; ++i) {
    T5Sample padded;
    ASSERT_THAT(dataset->Get(i, &padded), IsOk());
    ASSERT_THAT(source.Get(i, &sample), IsOk());
    const size_t length = static_cast<size_t>(padded.num_decoder_tokens);
    ASSERT_EQ(sample.tokens.size(), length);
    for (size_t t = 0; t < length; ++t) {
      EXPECT_EQ(sample.tokens[t], padded.decoder_tokens[t]);
      EXPECT_EQ(sample.labels[t], padded.labels[t]);
      EXPECT_EQ(sample.loss_mask[t], padded.loss_mask[t]);
      EXPECT_EQ(sample.positions[t], static_cast<int32_t>(t));
    }
    EXPECT_EQ(sample.labels.size(), length);
    EXPECT_EQ(sample.loss_mask.size(), length);
    EXPECT_EQ(sample.positions.size(), length);
    ASSERT_EQ(sample.encoder_tokens.size(), static_cast<size_t>(padded.num_encoder_tokens));
    for (size_t t = 0; t < sample.encoder_tokens.size(); ++t)
      EXPECT_EQ(sample.encoder_tokens[t], padded.encoder_tokens[t]);
    EXPECT_THAT(sample.document_starts, testing::ElementsAre(0));
    short_text |= sample.encoder_tokens.size() < 64;
    short_gaps |= length < 32;
  }
  EXPECT_TRUE(short_text && short_gaps);
}

// The tokens before a label tell its span: it is the span of the last sentinel.
TEST(T5SourceTest, LabelsBelongToTheSpanOfTheLastSentinel) {
  const T5Source source(Dataset());
  Sample sample;
  int spans = 0;
  for (int64_t i = 0; i < 50; ++i) {
    ASSERT_THAT(source.Get(i, &sample), IsOk());
    ASSERT_EQ(sample.spans.size(), sample.tokens.size());
    int32_t expected = -1;
    for (size_t t = 0; t < sample.tokens.size(); ++t) {
      expected += sample.tokens[t] >= 180;  // the mock vocabulary's last 20
      EXPECT_EQ(sample.spans[t], expected);
    }
    spans += expected + 1;
  }
  EXPECT_GT(spans, 50);
}

TEST(T5SourceTest, ASampleThatDoesNotExistIsAnError) {
  Sample sample;
  EXPECT_THAT(T5Source(Dataset()).Get(-1, &sample), StatusIs(absl::StatusCode::kOutOfRange));
}

}  // namespace
}  // namespace megatron
