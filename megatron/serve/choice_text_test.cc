#include "megatron/serve/choice_text.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"

namespace megatron::serve {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kEod = 256;

class ChoiceTextTest : public ::testing::Test {
 protected:
  ChoiceTextTest() {
    options_.end_tokens = {kEod};
    options_.keep_tokens = true;
  }

  static ScoredToken Scored(int token) {
    ScoredToken scored;
    scored.token = token;
    scored.logprob = -static_cast<float>(token);
    return scored;
  }

  // Gives the bytes one by one and takes what is decided after each.
  std::vector<ChoicePiece> Write(const std::string& bytes, FinishReason reason) {
    ChoiceText choice(tokenizer_, options_);
    std::vector<ScoredToken> prompt;
    for (size_t i = 1; i < options_.prompt.size(); ++i)
      prompt.push_back(Scored(options_.prompt[i]));
    choice.AddPrompt(prompt);
    std::vector<ChoicePiece> pieces;
    for (const char byte : bytes) {
      choice.AddToken(Scored(byte == '$' ? kEod : static_cast<unsigned char>(byte)));
      pieces.push_back(choice.Take());
    }
    choice.End(reason);
    pieces.push_back(choice.Take());
    EXPECT_TRUE(choice.Take().empty());
    EXPECT_TRUE(choice.ended());
    completion_tokens_ = choice.completion_tokens();
    return pieces;
  }

  // Does the same, and takes everything at the end. Checks that the pieces are that.
  ChoicePiece WriteWhole(const std::string& bytes, FinishReason reason) {
    ChoicePiece whole;
    for (ChoicePiece& piece : Write(bytes, reason)) {
      whole.text += piece.text;
      for (ChoiceToken& token : piece.tokens) whole.tokens.push_back(std::move(token));
      EXPECT_TRUE(whole.finish_reason.empty() || piece.finish_reason.empty());
      whole.finish_reason += piece.finish_reason;
    }
    return whole;
  }

  static std::vector<std::pair<int, int>> Places(const ChoicePiece& piece) {
    std::vector<std::pair<int, int>> places;
    for (const ChoiceToken& token : piece.tokens)
      places.emplace_back(token.token, static_cast<int>(token.offset));
    return places;
  }

  const ByteLevelTokenizer tokenizer_;
  ChoiceOptions options_;
  int64_t completion_tokens_ = 0;
};

using Place = std::pair<int, int>;

TEST_F(ChoiceTextTest, EndsByLengthOrByAToken) {
  ChoicePiece whole = WriteWhole("ab", FinishReason::kLength);
  EXPECT_EQ(whole.text, "ab");
  EXPECT_EQ(whole.finish_reason, "length");
  EXPECT_EQ(completion_tokens_, 2);
  whole = WriteWhole("ab$", FinishReason::kEndToken);
  EXPECT_EQ(whole.text, "ab");
  EXPECT_EQ(whole.finish_reason, "stop");
  EXPECT_EQ(completion_tokens_, 3);
  // The token that ends the text is scored like the others.
  EXPECT_THAT(Places(whole), ElementsAre(Place('a', 0), Place('b', 1), Place(kEod, 2)));
  EXPECT_TRUE(whole.tokens[2].is_end);
}

TEST_F(ChoiceTextTest, AStopEndsTheTextBeforeIt) {
  options_.stops = {"bcd"};
  const std::vector<ChoicePiece> pieces = Write("abcb", FinishReason::kLength);
  EXPECT_EQ(pieces[1].text, "");  // may begin the stop
  EXPECT_TRUE(pieces[1].tokens.empty());
  EXPECT_EQ(pieces[3].text, "bc");
  EXPECT_EQ(pieces[4].text, "b");
  const ChoicePiece whole = WriteWhole("abcdef", FinishReason::kLength);
  EXPECT_EQ(whole.text, "a");
  EXPECT_EQ(whole.finish_reason, "stop");
  EXPECT_THAT(Places(whole), ElementsAre(Place('a', 0)));
  EXPECT_EQ(completion_tokens_, 4);  // what the engine has written meanwhile does not count
}

TEST_F(ChoiceTextTest, OffsetsAreThoseOfCodePoints) {
  const ChoicePiece whole = WriteWhole("\u20acb", FinishReason::kLength);
  EXPECT_THAT(Places(whole),
              ElementsAre(Place(0xE2, 0), Place(0x82, 0), Place(0xAC, 0), Place('b', 1)));
}

TEST_F(ChoiceTextTest, AHalfCodePointIsReplacedAtTheEnd) {
  EXPECT_EQ(WriteWhole("a\xE2", FinishReason::kLength).text, "a\uFFFD");
}

TEST_F(ChoiceTextTest, AnEchoStandsBeforeTheTextWithItsScores) {
  options_.prompt = {'h', 'i'};
  options_.echo = "hi";
  options_.echo_tokens = true;
  const std::vector<ChoicePiece> pieces = Write("!", FinishReason::kLength);
  EXPECT_EQ(pieces[0].text, "hi!");
  const ChoicePiece whole = WriteWhole("!$", FinishReason::kEndToken);
  EXPECT_EQ(whole.text, "hi!");
  EXPECT_THAT(Places(whole),
              ElementsAre(Place('h', 0), Place('i', 1), Place('!', 2), Place(kEod, 3)));
  EXPECT_FALSE(whole.tokens[0].logprob.has_value());
  EXPECT_EQ(whole.tokens[1].logprob, -static_cast<float>('i'));
  // Without tokens to write, the scores of the prompt are the answer.
  const ChoicePiece scores = WriteWhole("", FinishReason::kLength);
  EXPECT_EQ(scores.text, "hi");
  EXPECT_EQ(scores.tokens.size(), 2u);
}

TEST_F(ChoiceTextTest, TokensAreGivenOutOnlyWhereTheyAreAskedFor) {
  options_.keep_tokens = false;
  const ChoicePiece whole = WriteWhole("ab$", FinishReason::kEndToken);
  EXPECT_EQ(whole.text, "ab");
  EXPECT_TRUE(whole.tokens.empty());
}

}  // namespace
}  // namespace megatron::serve
