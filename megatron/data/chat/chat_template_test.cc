#include "megatron/data/chat/chat_template.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"
#include "megatron/data/tokenizer/json/tokenizer_json.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A tokenizer whose tokens are letters and the marks of a template.
std::unique_ptr<Tokenizer> LettersAnd(const std::vector<std::string>& marks) {
  std::string vocab = R"("<unk>": 0, "</s>": 1, "\n": 2, " ": 3)", added;
  for (char c = 'a'; c <= 'z'; ++c)
    absl::StrAppend(&vocab, ", \"", std::string(1, c), "\": ", 4 + c - 'a');
  for (size_t i = 0; i < marks.size(); ++i) {
    absl::StrAppend(&added, i > 0 ? ", " : "", R"({"id": )", 30 + i, R"(, "content": ")", marks[i],
                    R"(", "single_word": false, "lstrip": false, "rstrip": false,
                        "normalized": false, "special": true})");
  }
  auto tokenizer = CreateTokenizerFromJson(
      absl::StrCat(
          R"({"added_tokens": [)", added,
          R"(], "decoder": {"type": "Fuse"}, "model": {"type": "BPE", "unk_token": "<unk>", "vocab": {)",
          vocab, R"(}, "merges": []}})"),
      {});
  EXPECT_THAT(tokenizer, IsOk());
  return *std::move(tokenizer);
}

TEST(ChatTemplateTest, ChatmlMarksMessages) {
  const auto tokenizer = LettersAnd({"<|im_start|>", "<|im_end|>"});
  const auto chat = ChatTemplate::Make("chatml", *tokenizer);
  ASSERT_THAT(chat, IsOk());
  EXPECT_THAT(chat->end_tokens(), ElementsAre(1, 31));
  const std::vector<ChatMessage> messages = {{"user", "hi"}, {"assistant", "<|im_end|>"}};
  const auto prompt = chat->Prompt(messages);
  ASSERT_THAT(prompt, IsOk());
  EXPECT_EQ(tokenizer->Decode(absl::MakeConstSpan(*prompt).first(9)),
            "<|im_start|>user\nhi<|im_end|>");
  // A message that spells a mark does not end there.
  EXPECT_EQ(std::count(prompt->begin(), prompt->end(), 31), 2);
  EXPECT_EQ(std::count(prompt->begin(), prompt->end(), 30), 3);
  EXPECT_EQ(tokenizer->Decode(absl::MakeConstSpan(*prompt).last(11)), "<|im_start|>assistant\n");
}

TEST(ChatTemplateTest, Llama3MarksRoles) {
  const auto tokenizer =
      LettersAnd({"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  const auto chat = ChatTemplate::Make("llama3", *tokenizer);
  ASSERT_THAT(chat, IsOk());
  const std::vector<ChatMessage> messages = {{"user", " hi\n"}};
  const auto prompt = chat->Prompt(messages);
  ASSERT_THAT(prompt, IsOk());
  EXPECT_EQ(tokenizer->Decode(*prompt),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_THAT(chat->end_tokens(), ElementsAre(1, 33));
}

TEST(ChatTemplateTest, AVocabularyWithoutTheMarksIsRefused) {
  const ByteLevelTokenizer bytes;
  EXPECT_THAT(ChatTemplate::Make("chatml", bytes).status().message(), HasSubstr("<|im_start|>"));
  EXPECT_THAT(ChatTemplate::Make("vicuna", bytes).status().message(),
              HasSubstr("nemotron_nano_v2 and plain"));
}

// The ids are 30 for <SPECIAL_10> and on; 1 ends a document.
TEST(ChatTemplateTest, NemotronsFormsAreMegatrons) {
  const auto tokenizer = LettersAnd({"<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"});
  const std::vector<ChatMessage> messages = {{"system", " be brief "},
                                             {"user", "/no_think hi"},
                                             {"assistant", " ho\n"},
                                             {"user", "a"},
                                             {"assistant", "b"}};
  for (const bool is_nano : {false, true}) {
    const auto chat =
        ChatTemplate::Make(is_nano ? "nemotron_nano_v2" : "nemotron_h_aligned", *tokenizer);
    ASSERT_THAT(chat, IsOk());
    EXPECT_THAT(chat->end_tokens(), ElementsAre(1, is_nano ? 32 : 31));
    const auto tokens = chat->Conversation(messages);
    ASSERT_THAT(tokens, IsOk());
    // A capital letter, a slash and a line of the vocabulary are one token each.
    const auto part = [&](int64_t begin, int64_t end) {
      return tokenizer->Decode(
          absl::MakeConstSpan(tokens->tokens)
              .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    };
    ASSERT_EQ(tokens->answers.size(), 2u);
    const auto& [first, last] = std::pair(tokens->answers[0], tokens->answers[1]);
    EXPECT_EQ(part(first.begin, first.end), is_nano ? "ho\n<SPECIAL_12>\n" : "ho\n");
    EXPECT_EQ(part(last.begin, last.end), is_nano ? "b\n<SPECIAL_12>\n" : "b\n</s>");
    EXPECT_EQ(last.end, static_cast<int64_t>(tokens->tokens.size()));
    EXPECT_EQ(std::count(tokens->tokens.begin(), tokens->tokens.end(), 30), 1);
    EXPECT_EQ(std::count(tokens->tokens.begin(), tokens->tokens.end(), 31), 4);
    // What precedes an answer is its prompt.
    const auto prompt = chat->Prompt(absl::MakeConstSpan(messages).first(2));
    ASSERT_THAT(prompt, IsOk());
    EXPECT_EQ(std::vector<int32_t>(tokens->tokens.begin(), tokens->tokens.begin() + first.begin),
              *prompt);
    EXPECT_EQ(absl::StrContains(tokenizer->Decode(*prompt), "think"), !is_nano);
  }
}

TEST(ChatTemplateTest, PlainAnswersEndWithTheEndOfDocument) {
  const ByteLevelTokenizer bytes;
  const auto chat = ChatTemplate::Make("plain", bytes);
  ASSERT_THAT(chat, IsOk());
  const std::vector<ChatMessage> messages = {
      {"system", "Be kind."}, {"user", "Hi"}, {"assistant", "Ho"}, {"user", "So?"}};
  const auto prompt = chat->Prompt(messages);
  ASSERT_THAT(prompt, IsOk());
  EXPECT_EQ(bytes.Decode(*prompt),
            "System: Be kind.\nUser: Hi\nAssistant: Ho<|endoftext|>User: So?\nAssistant:");
}

// What a model is asked to continue is what it has learned to continue.
TEST(ChatTemplateTest, AnswersFollowThePromptsBeforeThem) {
  const auto tokenizer = LettersAnd({"<|im_start|>", "<|im_end|>", "<|begin_of_text|>",
                                     "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  const ByteLevelTokenizer bytes;
  for (const char* name : {"chatml", "llama3", "plain"}) {
    SCOPED_TRACE(name);
    const Tokenizer& used =
        std::string(name) == "plain" ? static_cast<const Tokenizer&>(bytes) : *tokenizer;
    const auto chat = ChatTemplate::Make(name, used);
    ASSERT_THAT(chat, IsOk());
    const std::vector<ChatMessage> messages = {{"system", "be kind"}, {"user", "hi"},
                                               {"assistant", "ho"},   {"user", "so"},
                                               {"assistant", "yes"},  {"user", "bye"}};
    const auto conversation = chat->Conversation(messages);
    ASSERT_THAT(conversation, IsOk());
    const std::vector<int32_t>& tokens = conversation->tokens;
    ASSERT_EQ(conversation->answers.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      const ChatTokens::Range answer = conversation->answers[i];
      const auto prompt = chat->Prompt(absl::MakeConstSpan(messages).first(2 + 2 * i));
      ASSERT_THAT(prompt, IsOk());
      EXPECT_EQ(*prompt, std::vector<int32_t>(tokens.begin(), tokens.begin() + answer.begin));
      const auto text =
          absl::MakeConstSpan(tokens).subspan(answer.begin, answer.end - answer.begin);
      EXPECT_THAT(used.Decode(text.first(text.size() - 1)), HasSubstr(i == 0 ? "ho" : "yes"));
      EXPECT_THAT(chat->end_tokens(), ::testing::Contains(text.back()));
    }
    // Nothing is learned behind the last answer.
    EXPECT_EQ(conversation->answers.back().end, static_cast<int64_t>(tokens.size()));
  }
}

}  // namespace
}  // namespace megatron
