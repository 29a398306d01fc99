#include "megatron/data/tokenizer/null_tokenizer.h"

#include <cstdint>
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

TEST(NullTokenizerTest, NumbersAreEncodedAndDecoded) {
  const NullTokenizer tokenizer(1000);
  std::vector<int32_t> ids = {5};
  ASSERT_THAT(tokenizer.Encode(" 1 20\n999\t0 ", &ids), IsOk());
  EXPECT_THAT(ids, ElementsAre(5, 1, 20, 999, 0));
  EXPECT_EQ(tokenizer.Decode(ids), "5 1 20 999 0");
}

TEST(NullTokenizerTest, EncodingInvertsDecoding) {
  const NullTokenizer tokenizer(1000);
  EXPECT_EQ(tokenizer.Decode({1, 2, 3}), "1 2 3");
  EXPECT_EQ(tokenizer.Decode({}), "");
  std::vector<int32_t> ids;
  ASSERT_THAT(tokenizer.Encode(tokenizer.Decode({1, 2, 3}), &ids), IsOk());
  EXPECT_THAT(ids, ElementsAre(1, 2, 3));
}

TEST(NullTokenizerTest, SpansAreThoseOfTheNumbers) {
  std::vector<int32_t> ids;
  std::vector<TextSpan> spans;
  EncodeOptions options;
  options.spans = &spans;
  ASSERT_THAT(NullTokenizer(1000).Encode(" 1 20", &ids, options), IsOk());
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[1].begin, 3u);
  EXPECT_EQ(spans[1].end, 5u);
}

TEST(NullTokenizerTest, EodIsTheLastIdByDefault) {
  EXPECT_EQ(NullTokenizer(1000).eod(), 999);
  EXPECT_EQ(NullTokenizer(1000).special().pad, -1);
  EXPECT_EQ(NullTokenizer(1000, 5, 0).eod(), 5);
  EXPECT_EQ(NullTokenizer(1000, 5, 0).special().pad, 0);
}

TEST(NullTokenizerTest, OtherTextIsAnErrorAndAppendsNothing) {
  const NullTokenizer tokenizer(1000);
  for (const char* text : {"1 x", "1 1000", "1 -1", "1 2.5", "1 99999999999999999999"}) {
    std::vector<int32_t> ids = {5};
    EXPECT_THAT(tokenizer.Encode(text, &ids),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("below 1000")));
    EXPECT_THAT(ids, ElementsAre(5));
  }
}

}  // namespace
}  // namespace megatron
