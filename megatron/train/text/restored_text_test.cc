#include "megatron/train/text/restored_text.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/tokenizer/json/tokenizer_json.h"
#include "megatron/data/tokenizer/tokenizer_factory.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  RestoredText RestoredFrom(const std::string& given, const std::string& written) const {
    return PutTogether(Encode(given), Encode(written), *tokenizer_);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(RestoredTextTest, EachSentinelGivesWayToItsSpan) {
  const RestoredText restored = RestoredFrom("the <extra_id_0> owl took <extra_id_1> .",
                                             "<extra_id_0> fat red <extra_id_1> the lamp");
  EXPECT_EQ(restored.text, tokenizer_->Decode(Encode("the fat red owl took the lamp .")));
  EXPECT_THAT(restored.spans, ElementsAre("fat red", "the lamp"));
}

TEST_F(RestoredTextTest, SpansThatTheDecoderDidNotWriteStayOut) {
  const RestoredText restored =
      RestoredFrom("the <extra_id_0> owl <extra_id_1> .", "bag <extra_id_1>");
  EXPECT_EQ(restored.text, tokenizer_->Decode(Encode("the owl .")));
  EXPECT_THAT(restored.spans, ElementsAre("", ""));
}

TEST_F(RestoredTextTest, SpansFollowTheTextNotTheDecoder) {
  const RestoredText restored = RestoredFrom("<extra_id_2> owl <extra_id_0>",
                                             "<extra_id_0> lamp <extra_id_1> bag <extra_id_2> the");
  EXPECT_EQ(restored.text, tokenizer_->Decode(Encode("the owl lamp")));
  EXPECT_THAT(restored.spans, ElementsAre("the", "lamp"));
}

TEST_F(RestoredTextTest, TheTokenizersSpecialTokensSurroundTheText) {
  const auto tokenizer = CreateTokenizerFromJson(R"json({
    "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["</s>", 2]},
    "model": {"type": "WordPiece",
              "vocab": {"[UNK]": 0, "[CLS]": 1, "</s>": 2, "owl": 3, "<extra_id_0>": 4}}})json",
                                                 {});
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_THAT(EncodeGaps("owl<extra_id_0>", **tokenizer, 4), IsOkAndHolds(ElementsAre(1, 3, 4, 2)));
  EXPECT_THAT(
      EncodeGaps("owl<extra_id_0>", **tokenizer, 3),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 tokens long, and the encoder")));
  EXPECT_THAT(EncodeGaps("", **tokenizer, 4), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(RestoredTextTest, ASentinelStandsForOneGapOnly) {
  EXPECT_THAT(EncodeGaps("the <extra_id_0> owl <extra_id_0> .", *tokenizer_, 100),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has <extra_id_0> twice")));
  EXPECT_THAT(EncodeGaps("the <extra_id_1> owl <extra_id_0> .", *tokenizer_, 100), IsOk());
}

}  // namespace
}  // namespace megatron
