#include "megatron/data/chat/conversations.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/data/chat/conversation_line.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Line(const std::string& question, const std::string& answer) {
  return absl::StrCat(R"({"messages": [{"role": "user", "content": ")", question,
                      R"("}, {"role": "assistant", "content": ")", answer, "\"}]}\n");
}

class ConversationsTest : public ::testing::Test {
 protected:
  absl::StatusOr<Conversations> Read(const std::string& text, int64_t seq_length = 1000,
                                     bool drop_long = false) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/chat.jsonl");
    EXPECT_THAT(WriteFileAtomically(PosixFileSystem(), path, text), IsOk());
    const auto chat = ChatTemplate::Make("plain", tokenizer_);
    return Conversations::Read(path, *chat, {seq_length, drop_long});
  }
  std::string Text(absl::Span<const int32_t> tokens) { return tokenizer_.Decode(tokens); }

  ByteLevelTokenizer tokenizer_;
};

TEST_F(ConversationsTest, LinesBecomeTokensAndAnswers) {
  const auto read = Read(absl::StrCat(Line("Hi", "Ho"), "\n  \n", Line("So", "No")));
  ASSERT_THAT(read, IsOk());
  ASSERT_EQ(read->size(), 2);
  EXPECT_EQ(Text(read->Get(1).tokens), "User: So\nAssistant: No<|endoftext|>");
  ASSERT_EQ(read->Get(1).answers.size(), 1u);
  const ChatTokens::Range answer = read->Get(1).answers[0];
  EXPECT_EQ(Text(read->Get(1).tokens.subspan(answer.begin, answer.end - answer.begin)),
            " No<|endoftext|>");
  EXPECT_EQ(read->Describe(), "2 conversations, 46 tokens, 8 of them in answers");
}

TEST_F(ConversationsTest, AnEmptyAnswerIsItsEndAlone) {
  const auto read = Read(Line("So", ""));
  ASSERT_THAT(read, IsOk());
  ASSERT_EQ(read->Get(0).answers.size(), 1u);
  const ChatTokens::Range answer = read->Get(0).answers[0];
  EXPECT_EQ(Text(read->Get(0).tokens.subspan(answer.begin, answer.end - answer.begin)),
            " <|endoftext|>");
}

TEST_F(ConversationsTest, ASystemMessageBeginsAConversation) {
  const auto read = Read(
      R"({"messages": [{"role": "system", "content": "x"}, {"role": "assistant", "content": "a"},
          )"
      R"({"role": "system", "content": "y"}, {"role": "assistant", "content": "b"}]})");
  ASSERT_FALSE(read.ok());  // a line ends at its end
  const auto one_line = Read(
      R"({"messages": [{"role": "system", "content": "x"}, {"role": "assistant", "content": "a"},)"
      R"({"role": "system", "content": "y"}, {"role": "assistant", "content": "b"}]})");
  ASSERT_THAT(one_line, IsOk());
  ASSERT_EQ(one_line->size(), 2);
  EXPECT_EQ(Text(one_line->Get(1).tokens), "System: y\nAssistant: b<|endoftext|>");
}

TEST_F(ConversationsTest, WrongLinesAreRefusedByNumber) {
  const std::string good = Line("Hi", "Ho");
  for (const char* wrong : {"{", "[]", "5", "{}", R"({"messages": []})", R"({"messages": ["a"]})",
                            R"({"messages": [{"role": "tool", "content": "a"}]})",
                            R"({"messages": [{"role": "assistant", "content": null}]})",
                            R"({"messages": [{"content": "a"}]})",
                            R"({"messages": [{"role": "user", "content": "a"}]})",
                            R"({"messages": [{"role": "assistant", "content": "a"},
           {"role": "system", "content": "b"}]})",
                            "{\"messages\": [{\"role\": \"assistant\", \"content\": \"\xff\"}]}"}) {
    EXPECT_THAT(Read(absl::StrCat(good, good, wrong, "\n", good)),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("chat.jsonl, line 3: ")))
        << wrong;
  }
  EXPECT_THAT(Read("\n").status().message(), HasSubstr("has no conversation"));
  EXPECT_THAT(ParseConversationLine(absl::string_view("{}\0", 3)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("is no JSON")));
}

TEST_F(ConversationsTest, LongConversationsAreCutOrLeftOut) {
  // "User: Hi\nAssistant:" has 19 tokens, and the answer 3 with the end of the document.
  const std::string text = absl::StrCat(Line("Hi", "a"), Line("Hi", "abcdef"), Line("Hello", "a"));
  const auto cut = Read(text, /*seq_length=*/21);
  ASSERT_THAT(cut, IsOk());
  ASSERT_EQ(cut->size(), 2);
  EXPECT_EQ(Text(cut->Get(1).tokens), "User: Hi\nAssistant: ab");
  EXPECT_EQ(cut->Get(1).answers[0].end, 22);
  // The last one has no answer within 22 tokens.
  EXPECT_THAT(cut->Describe(),
              AllOf(HasSubstr("1 too long and cut"), HasSubstr("1 too long and left out")));
  const auto dropped = Read(text, 21, /*drop_long=*/true);
  ASSERT_THAT(dropped, IsOk());
  EXPECT_EQ(dropped->size(), 1);
  EXPECT_THAT(dropped->Describe(), HasSubstr("2 too long and left out"));
  EXPECT_THAT(Read(text, 4).status().message(), HasSubstr("no conversation that fits"));
}

TEST_F(ConversationsTest, TheFingerprintFollowsTheTokens) {
  const std::string text = Line("Hi", "Ho");
  EXPECT_EQ(Read(text)->Fingerprint(), Read(absl::StrCat(text, "\n"))->Fingerprint());
  EXPECT_NE(Read(text)->Fingerprint(), Read(Line("Hi", "Hu"))->Fingerprint());
}

}  // namespace
}  // namespace megatron
