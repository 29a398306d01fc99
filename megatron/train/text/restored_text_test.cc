#include "megatron/train/text/restored_text.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;

class RestoredTextTest : public ::testing::Test {
 protected:
  RestoredTextTest() {
    TokenizerOptions options;
    options.type = "StoryWordPiece";
    options.vocab_extra_ids = 3;
    tokenizer_ = *CreateTokenizer(options);
  }

  std::vector<int32_t> Encode(const std::string& text) const {
    std::vector<int32_t> tokens;
    EncodeOptions options;
    options.parse_special = true;
    EXPECT_TRUE(tokenizer_->Encode(text, &tokens, options).ok());
    return tokens;
  }
  RestoredText Together(const std::string& given, const std::string& written) const {
    return PutTogether(Encode(given), Encode(written), *tokenizer_);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(RestoredTextTest, EachSentinelGivesWayToItsSpan) {
  const RestoredText restored = Together("the <extra_id_0> owl took <extra_id_1> .",
                                         "<extra_id_0> fat red <extra_id_1> the lamp");
  EXPECT_EQ(restored.text, tokenizer_->Decode(Encode("the fat red owl took the lamp .")));
  EXPECT_THAT(restored.spans, ElementsAre("fat red", "the lamp"));
}

TEST_F(RestoredTextTest, WhatTheDecoderDidNotWriteStaysOut) {
  const RestoredText restored = Together("the <extra_id_0> owl <extra_id_1> .", "bag <extra_id_1>");
  EXPECT_EQ(restored.text, tokenizer_->Decode(Encode("the owl .")));
  EXPECT_THAT(restored.spans, ElementsAre("", ""));
}

TEST_F(RestoredTextTest, SpansFollowTheTextNotTheDecoder) {
  const RestoredText restored = Together("<extra_id_2> owl <extra_id_0>",
                                         "<extra_id_0> lamp <extra_id_1> bag <extra_id_2> the");
  EXPECT_EQ(restored.text, tokenizer_->Decode(Encode("the owl lamp")));
  EXPECT_THAT(restored.spans, ElementsAre("the", "lamp"));
}

}  // namespace
}  // namespace megatron
