#include "megatron/data/tokenizer/byte_level_tokenizer.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;

TEST(ByteLevelTokenizerTest, EveryByteIsOneToken) {
  std::vector<int32_t> ids = {7};
  ASSERT_TRUE(ByteLevelTokenizer().Encode("aé", &ids).ok());
  EXPECT_THAT(ids, ElementsAre(7, 97, 0xC3, 0xA9));
}

TEST(ByteLevelTokenizerTest, DecodeInvertsEncodeForAllBytes) {
  const ByteLevelTokenizer tokenizer;
  std::string text;
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second)
      text += {static_cast<char>(first), static_cast<char>(second)};
  }
  std::vector<int32_t> ids;
  ASSERT_TRUE(tokenizer.Encode(text, &ids).ok());
  for (const int32_t id : ids)
    ASSERT_TRUE(0 <= id && id < tokenizer.vocab_size() && id != tokenizer.eod());
  EXPECT_EQ(tokenizer.Decode(ids), text);
}

TEST(ByteLevelTokenizerTest, SpecialAndInvalidIdsHaveSpellings) {
  const ByteLevelTokenizer tokenizer;
  EXPECT_EQ(tokenizer.Decode({97, tokenizer.eod(), 98}), "a<|endoftext|>b");
  EXPECT_EQ(tokenizer.Decode({-1, 257}), "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(ByteLevelTokenizerTest, EodIsParsedOnlyOnRequest) {
  const ByteLevelTokenizer tokenizer;
  std::vector<int32_t> ids;
  ASSERT_TRUE(tokenizer.Encode("<|endoftext|>", &ids).ok());
  EXPECT_EQ(ids.size(), 13u);
  ids.clear();
  std::vector<TextSpan> spans;
  EncodeOptions options;
  options.parse_special = true;
  options.spans = &spans;
  ASSERT_TRUE(tokenizer.Encode("a<|endoftext|>b", &ids, options).ok());
  EXPECT_THAT(ids, ElementsAre('a', 256, 'b'));
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[1].begin, 1u);
  EXPECT_EQ(spans[1].end, 14u);
}

}  // namespace
}  // namespace megatron
