#include "megatron/data/masked/bert_source.h"

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

std::unique_ptr<BertDataset> Dataset() {
  BertDatasetOptions options;
  options.seq_length = 64;
  options.num_samples = 50;
  auto dataset = CreateMockDataset<BertDataset>(Split::kTrain, MockWordPieces(100, 0), options);
  EXPECT_THAT(dataset, IsOk());
  return *std::move(dataset);
}

TEST(BertSourceTest, SamplesAreThoseOfTheDatasetWithoutPadding) {
  const std::unique_ptr<BertDataset> dataset = Dataset();
  const BertSource source(Dataset());
  ASSERT_EQ(source.size(), dataset->size());
  bool short_one = false, swapped = false, in_order = false;
  for (int64_t i = 0; i < 50; ++i) {
    BertSample padded;
    Sample sample;
    ASSERT_THAT(dataset->Get(i, &padded), IsOk());
    ASSERT_THAT(source.Get(i, &sample), IsOk());
    const size_t length = static_cast<size_t>(padded.num_tokens);
    for (size_t t = 0; t < length; ++t) {
      EXPECT_EQ(sample.tokens[t], padded.tokens[t]);
      EXPECT_EQ(sample.types[t], padded.types[t]);
      EXPECT_EQ(sample.labels[t], padded.labels[t]);
      EXPECT_EQ(sample.loss_mask[t], padded.loss_mask[t]);
      EXPECT_EQ(sample.positions[t], static_cast<int32_t>(t));
    }
    EXPECT_EQ(sample.tokens.size(), length);
    EXPECT_EQ(sample.types.size(), length);
    EXPECT_EQ(sample.labels.size(), length);
    EXPECT_EQ(sample.loss_mask.size(), length);
    EXPECT_EQ(sample.positions.size(), length);
    EXPECT_THAT(sample.document_starts, testing::ElementsAre(0));
    EXPECT_EQ(sample.sequence_class, padded.is_random ? 1 : 0);
    short_one |= length < 64;
    (padded.is_random ? swapped : in_order) = true;
  }
  EXPECT_TRUE(short_one && swapped && in_order);
}

TEST(BertSourceTest, ASampleThatDoesNotExistIsAnError) {
  Sample sample;
  EXPECT_THAT(BertSource(Dataset()).Get(-1, &sample), StatusIs(absl::StatusCode::kOutOfRange));
}

}  // namespace
}  // namespace megatron
