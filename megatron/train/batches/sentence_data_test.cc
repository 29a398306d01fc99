#include "megatron/train/batches/sentence_data.h"

#include <memory>
#include <set>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/gpt/story_sequences.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

using Source = std::unique_ptr<SampleSource>;

std::unique_ptr<Tokenizer> Make(const std::string& type, int64_t vocab_size, int64_t extra_ids) {
  TokenizerOptions options;
  options.type = type;
  options.vocab_size = vocab_size;
  options.vocab_extra_ids = extra_ids;
  return *CreateTokenizer(options);
}

SentenceDatasetOptions Options() {
  SentenceDatasetOptions dataset;
  dataset.seq_length = 64;
  dataset.num_samples = 40;
  return dataset;
}

SentenceDataOptions T5() {
  SentenceDataOptions options;
  options.model = ModelKind::kT5;
  options.decoder_seq_length = 24;
  return options;
}

absl::StatusOr<Source> OpenStories(const SentenceDataOptions& options, const Tokenizer& tokenizer) {
  auto stories = std::make_shared<StorySentences>(*MakeStorySentences(20000, 1, tokenizer));
  SentenceDatasetOptions dataset = Options();
  dataset.documents = {0, stories->num_documents()};
  return OpenSentences(
      options, dataset, std::shared_ptr<const TokenSequences>(stories, &stories->sentences),
      [&](int64_t i) { return stories->DocumentSequences(i); }, tokenizer);
}

// T5's samples mark with sentinels where a span was cut out, and have tokens that begin and end the
// decoder's text.
void ExpectT5(const SampleSource& source, int32_t vocab_size) {
  Sample sample;
  int cut = 0;
  for (int64_t i = 0; i < 40; ++i) {
    ASSERT_THAT(source.Get(i, &sample), IsOk());
    ASSERT_LE(sample.encoder_tokens.size(), 64u);
    ASSERT_LE(sample.tokens.size(), 24u);
    const std::set<int32_t> read(sample.encoder_tokens.begin(), sample.encoder_tokens.end());
    EXPECT_LT(*read.rbegin(), vocab_size);
    EXPECT_NE(sample.tokens[0], sample.labels.back());
    EXPECT_TRUE(sample.types.empty());
    if (sample.tokens.size() == 1) continue;      // too short a text to cut anything out
    EXPECT_EQ(read.count(sample.tokens[1]), 1u);  // the first sentinel
    ++cut;
  }
  EXPECT_GT(cut, 20);
}

TEST(SentenceDataTest, ADecoderLengthMakesSamplesOfT5) {
  const auto tokenizer = Make("StoryWordPiece", 0, 20);
  const auto source = OpenStories(T5(), *tokenizer);
  ASSERT_THAT(source, IsOk());
  ExpectT5(**source, tokenizer->vocab_size());
}

TEST(SentenceDataTest, WithoutADecoderLengthSamplesAreBerts) {
  const auto tokenizer = Make("StoryWordPiece", 0, 0);
  const auto source = OpenStories({}, *tokenizer);
  ASSERT_THAT(source, IsOk());
  Sample sample;
  ASSERT_THAT((*source)->Get(0, &sample), IsOk());
  EXPECT_TRUE(sample.encoder_tokens.empty());
  EXPECT_EQ(sample.tokens[0], tokenizer->special().cls);
}

TEST(SentenceDataTest, MoreIsMaskedWithAGreaterProbability) {
  const auto tokenizer = Make("StoryWordPiece", 0, 20);
  SentenceDataOptions options = T5();
  options.mask_prob = 0.3;
  size_t tokens[2] = {0, 0};
  for (int i : {0, 1}) {
    const auto source = OpenStories(i == 0 ? T5() : options, *tokenizer);
    ASSERT_THAT(source, IsOk());
    Sample sample;
    for (int64_t s = 0; s < 40; ++s) {
      ASSERT_THAT((*source)->Get(s, &sample), IsOk());
      tokens[i] += sample.tokens.size();
    }
  }
  EXPECT_GT(tokens[1], tokens[0] * 3 / 2);
}

TEST(SentenceDataTest, MockDataBringsItsOwnSentinels) {
  const auto tokenizer = Make("NullTokenizer", 300, 0);
  const auto source = OpenMockSentences(T5(), Options(), *tokenizer);
  ASSERT_THAT(source, IsOk());
  ExpectT5(**source, 300);
}

TEST(SentenceDataTest, WithoutSentinelsThereIsNoT5) {
  EXPECT_THAT(OpenStories(T5(), *Make("StoryWordPiece", 0, 0)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("vocab_extra_ids")));
}

}  // namespace
}  // namespace megatron
