#include "megatron/serve/api_request.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"
#include "megatron/serve/api_error.h"
#include "megatron/serve/api_fields.h"

namespace megatron::serve {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kEod = 256;

class ApiRequestTest : public ::testing::Test {
 protected:
  ApiRequestTest() {
    context_.tokenizer = &tokenizer_;
    context_.model = "stories";
    context_.limits = {257, 32, 4, 8, 5};
    context_.max_choices = 10;
    chat_ = std::make_unique<ChatTemplate>(*ChatTemplate::Make("plain", tokenizer_));
    context_.chat = chat_.get();
  }

  absl::StatusOr<TextCall> Completion(const std::string& body) const {
    const auto json = ParseBody(body);
    return json.ok() ? ReadCompletion(*json, context_, /*seed=*/99) : json.status();
  }
  absl::StatusOr<TextCall> Chat(const std::string& body) const {
    const auto json = ParseBody(body);
    return json.ok() ? ReadChat(*json, context_, /*seed=*/99) : json.status();
  }

  // Expects that the request is refused, and that the answer names the field.
  void ExpectRefused(const std::string& body, const std::string& field,
                     const std::string& message) const {
    const auto call = Completion(body);
    ASSERT_THAT(call, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message))) << body;
    const auto error = ErrorJson(call.status())["error"];
    EXPECT_EQ(error["param"].is_null() ? "" : error["param"].get<std::string>(), field) << body;
    EXPECT_EQ(error["type"].get<std::string>(), "invalid_request_error");
  }

  const ByteLevelTokenizer tokenizer_;
  std::unique_ptr<ChatTemplate> chat_;
  ApiContext context_;
};

TEST_F(ApiRequestTest, TheDefaultsAreOpenAis) {
  const auto call = Completion(R"({"prompt": "hi"})");
  ASSERT_THAT(call, IsOk());
  EXPECT_THAT(call->prompts[0].tokens, ElementsAre('h', 'i'));
  EXPECT_EQ(call->max_tokens, 16);
  EXPECT_EQ(call->n, 1);
  EXPECT_EQ(call->sampling.temperature, 1);
  EXPECT_EQ(call->sampling.top_p, 1);
  EXPECT_EQ(call->sampling.top_k, 0);
  EXPECT_EQ(call->sampling.seed, 99u);
  EXPECT_FALSE(call->logprobs || call->echo || call->stream);
  EXPECT_THAT(call->end_tokens, ElementsAre(kEod));
}

TEST_F(ApiRequestTest, APromptHasFourForms) {
  auto call = Completion(R"({"prompt": ["a", "bc"], "model": "stories"})");
  ASSERT_THAT(call, IsOk());
  ASSERT_EQ(call->prompts.size(), 2u);
  EXPECT_EQ(call->prompts[1].text, "bc");
  call = Completion(R"({"prompt": [104, 105]})");
  ASSERT_THAT(call, IsOk());
  ASSERT_EQ(call->prompts.size(), 1u);
  EXPECT_THAT(call->prompts[0].tokens, ElementsAre('h', 'i'));
  EXPECT_EQ(call->prompts[0].text, "hi");
  call = Completion(R"({"prompt": [[104], [105, 256]]})");
  ASSERT_THAT(call, IsOk());
  EXPECT_THAT(call->prompts[1].tokens, ElementsAre('i', kEod));
  EXPECT_EQ(call->prompt_tokens(), 3);
  // An empty one begins a document.
  for (const char* empty : {R"({"prompt": ""})", R"({"prompt": [[]]})"}) {
    call = Completion(empty);
    ASSERT_THAT(call, IsOk());
    EXPECT_THAT(call->prompts[0].tokens, ElementsAre(kEod));
    EXPECT_EQ(call->prompts[0].text, "");
  }
  for (const char* wrong : {"{}", R"({"prompt": 5})", R"({"prompt": {}})", R"({"prompt": [true]})",
                            R"({"prompt": ["a", [1]]})"}) {
    ExpectRefused(wrong, "prompt", "prompt is a text");
  }
  ExpectRefused(R"({"prompt": []})", "prompt", "prompt is an empty list");
  for (const char* wrong :
       {R"({"prompt": [1, "a"]})", R"({"prompt": [257]})", R"({"prompt": [-1]})",
        R"({"prompt": [[1.5]]})", R"({"prompt": [99999999999999999999]})"}) {
    ExpectRefused(wrong, "prompt", "0 to 256");
  }
}

TEST_F(ApiRequestTest, SpecialTokensAreReadAsOtherServersDo) {
  auto call = Completion(R"({"prompt": "a<|endoftext|>"})");
  ASSERT_THAT(call, IsOk());
  EXPECT_THAT(call->prompts[0].tokens, ElementsAre('a', kEod));
  call = Completion(R"({"prompt": "<|endoftext|>", "parse_special": false})");
  ASSERT_THAT(call, IsOk());
  EXPECT_EQ(call->prompts[0].tokens.size(), 13u);
}

TEST_F(ApiRequestTest, EveryTextOfARequestHasASeed) {
  const auto call = Completion(
      R"({"prompt": ["a", "b"], "n": 3, "seed": 7, "logprobs": 2, "echo": true, "max_tokens": 0})");
  ASSERT_THAT(call, IsOk());
  EXPECT_EQ(call->choices(), 6);
  const TextRequest request = call->Request(4);
  EXPECT_THAT(request.prompt, ElementsAre('b'));
  EXPECT_EQ(request.sampling.seed, 8u);
  EXPECT_EQ(request.top_logprobs, 2);
  EXPECT_EQ(request.max_new_tokens, 0);
  EXPECT_TRUE(request.score_prompt);
}

TEST_F(ApiRequestTest, TopPOfZeroLeavesTheLikeliestToken) {
  const auto call = Completion(R"({"prompt": "a", "top_p": 0, "top_k": -1})");
  ASSERT_THAT(call, IsOk());
  const float logits[] = {1, 3, 2};
  for (const float uniform : {0.01f, 0.5f, 1.0f})
    EXPECT_EQ(SampleToken(logits, 3, call->sampling, uniform), 1);
}

TEST_F(ApiRequestTest, APromptThatIsTooLongIsRefusedWithTheNumbersOrCut) {
  const std::string prompt(30, 'x');
  ExpectRefused(absl::StrCat(R"({"prompt": ")", prompt, R"(", "max_tokens": 3})"), "prompt",
                "the context of this model is 32 tokens; 30 in prompt and 3 to be written");
  const auto longer = Completion(absl::StrCat(R"({"prompt": ")", prompt, "xyz\"}"));
  EXPECT_EQ(ErrorJson(longer.status())["error"]["code"].get<std::string>(),
            "context_length_exceeded");
  // The default of max_tokens is no wish.
  EXPECT_THAT(Completion(absl::StrCat(R"({"prompt": ")", prompt, "\"}")), IsOk());
  auto call = Completion(absl::StrCat(R"({"prompt": ")", prompt,
                                      R"(yz", "max_tokens": 3, "truncate_prompt_tokens": -1})"));
  ASSERT_THAT(call, IsOk());
  EXPECT_EQ(call->prompts[0].tokens.size(), 29u);
  EXPECT_EQ(call->prompts[0].tokens.back(), 'z');
  EXPECT_THAT(call->Warnings(),
              ElementsAre("prompt 0: its first 3 tokens were cut, and 29 are left"));
  // A cut leaves room for the default, too.
  call =
      Completion(absl::StrCat(R"({"prompt": ")", prompt, R"(yz", "truncate_prompt_tokens": -1})"));
  ASSERT_THAT(call, IsOk());
  EXPECT_EQ(call->prompts[0].tokens.size(), 16u);
  call = Completion(R"({"prompt": "abc", "truncate_prompt_tokens": 2, "echo": true})");
  ASSERT_THAT(call, IsOk());
  EXPECT_EQ(call->prompts[0].text, "bc");
}

TEST_F(ApiRequestTest, ACutThatLeavesTooMuchIsRefusedWithTheNumbers) {
  const std::string prompt = absl::StrCat(R"({"prompt": ")", std::string(40, 'x'), "\"");
  ExpectRefused(absl::StrCat(prompt, R"(, "max_tokens": 3})"), "prompt",
                "cut the front of the prompt to 29 tokens");
  ExpectRefused(absl::StrCat(prompt, R"(, "max_tokens": 3, "truncate_prompt_tokens": 33})"),
                "truncate_prompt_tokens",
                "truncate_prompt_tokens is 33, and the context of this model is 32 tokens; -1");
  ExpectRefused(absl::StrCat(prompt, R"(, "max_tokens": 3, "truncate_prompt_tokens": 32})"),
                "prompt",
                "32 in prompt after truncate_prompt_tokens and 3 to be written are more. Ask for "
                "fewer, or let truncate_prompt_tokens keep at most 29 tokens");
  EXPECT_THAT(
      Completion(absl::StrCat(prompt, R"(, "max_tokens": 3, "truncate_prompt_tokens": 29})")),
      IsOk());
  // No prompt is short enough here.
  EXPECT_TRUE(absl::EndsWith(
      Completion(absl::StrCat(prompt, R"(, "max_tokens": 32, "truncate_prompt_tokens": -1})"))
          .status()
          .message(),
      "Ask for fewer"));
}

TEST_F(ApiRequestTest, NoFieldIsWithoutEffectInSilence) {
  const auto with = [](const std::string& field) {
    return absl::StrCat(R"({"prompt": "a", )", field, "}");
  };
  ExpectRefused(with(R"("max_token": 5)"), "max_token", "there is no field 'max_token'");
  ExpectRefused(with(R"("suffix": "b")"), "suffix", "suffix is not supported");
  ExpectRefused(with(R"("logit_bias": {"5": 1})"), "logit_bias", "not supported");
  ExpectRefused(with(R"("presence_penalty": 0.5)"), "presence_penalty", "not supported");
  ExpectRefused(with(R"("best_of": 2)"), "best_of", "not supported");
  for (const char* fine :
       {R"("suffix": null)", R"("functions": null)", R"("logit_bias": {})",
        R"("presence_penalty": 0.0)", R"("user": "me")", R"("n": 2, "best_of": 2)",
        R"("frequency_penalty": 0)", R"("repetition_penalty": 1.0)"}) {
    EXPECT_THAT(Completion(with(fine)), IsOk()) << fine;
  }
}

TEST_F(ApiRequestTest, ValuesOutOfRangeAreRefused) {
  const auto refuse = [&](const std::string& field, const std::string& value,
                          const std::string& message) {
    ExpectRefused(absl::StrCat(R"({"prompt": "a", ")", field, "\": ", value, "}"), field, message);
  };
  refuse("max_tokens", "-1", "whole number of 0");
  refuse("max_tokens", "1.5", "whole number");
  refuse("max_tokens", "1e2", "whole number");
  refuse("max_tokens", "99999999999999999999", "whole number");
  refuse("max_tokens", "\"5\"", "whole number");
  refuse("temperature", "-0.1", "number of 0");
  refuse("temperature", "true", "number of 0");
  refuse("top_p", "1.1", "number of 0 to 1");
  refuse("n", "0", "1 to 10");
  refuse("n", "11", "1 to 10");
  refuse("logprobs", "6", "whole number of 0 to 5");
  refuse("logprobs", "-1", "whole number of 0 to 5");
  refuse("max_tokens", "32", "1 in prompt and 32 to be written are more. Ask for fewer");
  refuse("logprobs", "true", "whole number");
  refuse("echo", "1", "true or false");
  refuse("stop", "\"\"", "1 to 256 bytes");
  refuse("stop", "[1]", "a text or a list");
  refuse("stop", "5", "a text or a list");
  refuse("stream_options", "{}", "stream");
  refuse("truncate_prompt_tokens", "0", "cut to nothing");
  refuse("seed", "1.0", "whole number");
  ExpectRefused(R"({"prompt": ["a", "b", "c"], "n": 5})", "n", "3 prompts times 5");
  ExpectRefused(R"({"prompt": ["1","2","3","4","5","6","7","8","9","10","11"]})", "prompt",
                "at most 10");
}

TEST_F(ApiRequestTest, ABodyThatIsNoObjectIsRefused) {
  for (const char* body : {"", "{", "[]", "5", "nonsense", "{\"prompt\": \"\xFF\"}",
                           R"({"prompt": "a", "prompt": "b"})", R"({"prompt": 1e999})"}) {
    ExpectRefused(body, "", "the body is");
  }
  std::string deep = R"({"prompt": )";
  for (int i = 0; i < 100000; ++i) deep += '[';
  ExpectRefused(deep, "", "32 levels");
  ExpectRefused(std::string("{\"prompt\": \"a\"}\0", 16), "", "zero byte");
}

std::string Repeated(absl::string_view value, size_t count) {
  std::string list = std::string(value);
  for (size_t i = 1; i < count; ++i) absl::StrAppend(&list, ",", value);
  return list;
}

TEST_F(ApiRequestTest, ABodyWhoseValuesTakeTooMuchMemoryIsRefusedBeforeTheyDo) {
  const ReadingLimits limits = {{257, 512, 16, 256, 20}, 128, 2 << 20};
  EXPECT_EQ(limits.MostValueBytes(), (1u << 20) + 80 * 128 * 513);
  const auto parse = [&](const std::string& body) {
    return ParseBody(body, limits.MostValueBytes()).status();
  };
  // The longest prompts that there can be are taken, and bodies of OpenAI's bookkeeping.
  EXPECT_THAT(
      parse(absl::StrCat("{\"prompt\": [",
                         Repeated(absl::StrCat("[", Repeated("49999", 512), "]"), 128), "]}")),
      IsOk());
  EXPECT_THAT(parse(absl::StrCat("{\"metadata\": {\"a\": [", Repeated("{}", 1000), "]}}")), IsOk());
  for (const char* value : {"7", "[]", "{}", "\"\"", "null", "{\"a\":{}}"}) {
    const absl::Status status =
        parse(absl::StrCat("{\"metadata\": [", Repeated(value, 200000), "]}"));
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("6.01 MiB of memory")))
        << value;
  }
}

TEST_F(ApiRequestTest, WhatABodyCanHoldBoundsItsValues) {
  // 128 contexts are more than two megabytes have numbers.
  const ReadingLimits limits = {{257, 131072, 16, 256, 20}, 128, 2 << 20};
  EXPECT_EQ(limits.MostValueBytes(), (1u << 20) + (80u << 20));
  EXPECT_EQ(limits.MostTextBytes(), 4u << 20);
  EXPECT_EQ(limits.MostReadingBytes(), (81u << 20) + (32u << 20) + (160u << 20));
}

TEST_F(ApiRequestTest, ATextThatIsTooLongIsRefusedWithTheNumbers) {
  context_.max_text_bytes = 40;
  const std::string fits(40, 'x');
  const auto body = [](const std::string& text) {
    return absl::StrCat(R"({"prompt": ")", text, R"(", "truncate_prompt_tokens": 5})");
  };
  EXPECT_THAT(Completion(body(fits)), IsOk());
  ExpectRefused(body(fits + "x"), "prompt", "a text of prompt has 41 bytes, and at most 40");
  EXPECT_THAT(ReadTokenize(*ParseBody(absl::StrCat(R"({"prompt": ")", fits, "x\"}")), context_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 40")));
  EXPECT_THAT(Chat(absl::StrCat(R"({"messages": [{"role": "user", "content": ")", fits,
                                R"(x"}], "truncate_prompt_tokens": 5})")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a text of messages")));
}

TEST_F(ApiRequestTest, ARequestHoldsTheTokensOfAllItsTexts) {
  const auto call = Completion(R"({"prompt": [97, 98], "n": 2, "max_tokens": 5})");
  ASSERT_THAT(call, IsOk());
  EXPECT_EQ(call->HeldBytes(context_.limits), 2 * (1024u + 32 * 7) + 2);
  // No text is longer than the context.
  const ReadingLimits limits = {context_.limits, context_.max_choices, 1000};
  EXPECT_EQ(limits.AllHeldBytes(), 12 * (1024u + 32 * 32));
}

TEST_F(ApiRequestTest, AnotherModelIsNotFound) {
  const absl::Status status = Completion(R"({"prompt": "a", "model": "gpt-4"})").status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("there is 'stories'")));
  const auto error = ErrorJson(status)["error"];
  EXPECT_EQ(error["param"], "model");
  EXPECT_EQ(error["code"], "model_not_found");
  EXPECT_EQ(error["type"], "invalid_request_error");
}

TEST(ApiErrorTest, AnUnknownVersionOfHttpIsTheClientsMistake) {
  const auto type = [](int status) {
    return nlohmann::json::parse(ApiErrorResponse(status, "no").body)["error"]["type"];
  };
  EXPECT_EQ(type(505), "invalid_request_error");
  EXPECT_EQ(type(503), "server_error");
}

TEST_F(ApiRequestTest, AConversationBecomesAPrompt) {
  const auto call = Chat(R"({"messages": [{"role": "developer", "content": "Be kind."},
      {"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}],
      "max_completion_tokens": 2, "stop": "x"})");
  // 36 bytes are more than the context.
  EXPECT_THAT(call, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in messages")));
  const auto fits = Chat(R"({"messages": [{"role": "user", "content": "Hi"}], "stop": "x"})");
  ASSERT_THAT(fits, IsOk());
  EXPECT_EQ(tokenizer_.Decode(fits->prompts[0].tokens), "User: Hi\nAssistant:");
  EXPECT_THAT(fits->stops, ElementsAre("x", "\nUser:"));
  EXPECT_GE(fits->max_tokens, 32);  // what is left of the context
}

TEST_F(ApiRequestTest, TheFieldThatAsksForTooManyTokensIsNamed) {
  for (const char* field : {"max_tokens", "max_completion_tokens"}) {
    const absl::Status status =
        Chat(absl::StrCat(R"({"messages": [{"role": "user", "content": "Hi"}], ")", field,
                          "\": 1000}"))
            .status();
    EXPECT_EQ(ErrorJson(status)["error"]["param"], field);
    EXPECT_EQ(ErrorJson(status)["error"]["code"], "context_length_exceeded");
  }
}

TEST_F(ApiRequestTest, WrongConversationsAreRefused) {
  for (
      const char* wrong :
      {"{}", R"({"messages": []})", R"({"messages": ["hi"]})",
       R"({"messages": [{"role": "user"}]})", R"({"messages": [{"role": "tool", "content": "a"}]})",
       R"({"messages": [{"content": "a"}]})", R"({"messages": [{"role": 5, "content": "a"}]})",
       R"({"messages": [{"role": "user", "content": 5}]})",
       R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]})",
       R"({"messages": [{"role": "user", "content": "a", "weight": 1}]})",
       R"({"messages": [{"role": "user", "content": "a"}], "tools": [1]})",
       R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 1})",
       R"({"messages": [{"role": "user", "content": "a"}], "prompt": "b"})",
       R"({"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}})",
       R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "max_completion_tokens": 1})"}) {
    EXPECT_THAT(Chat(wrong), StatusIs(absl::StatusCode::kInvalidArgument)) << wrong;
  }
  EXPECT_THAT(Chat(R"({"messages": [{"role": "user", "content": "a"}], "tools": [],
                       "response_format": {"type": "text"}, "tool_choice": "none"})"),
              IsOk());
  context_.chat = nullptr;
  EXPECT_THAT(Chat(R"({"messages": [{"role": "user", "content": "a"}]})"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--chat_template")));
}

TEST_F(ApiRequestTest, TokenizesAndBack) {
  const auto tokenize = [&](const std::string& body) {
    return ReadTokenize(*ParseBody(body), context_);
  };
  EXPECT_THAT(*tokenize(R"({"prompt": "<|endoftext|>", "add_special_tokens": false})"),
              ElementsAre(kEod));
  EXPECT_THAT(tokenize(R"({"text": "a"})"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(tokenize(R"({"messages": [{"role": "user", "content": "a"}]})")->size(), 18u);
  EXPECT_THAT(*ReadDetokenize(*ParseBody(R"({"tokens": [104, 105]})"), context_),
              ElementsAre(104, 105));
  EXPECT_THAT(ReadDetokenize(*ParseBody(R"({"tokens": [257]})"), context_),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron::serve
