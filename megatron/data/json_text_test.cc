#include "megatron/data/json_text.h"

#include <string>
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

std::vector<std::string> Texts(const std::string& line,
                               const std::vector<std::string>& keys = {"text"}) {
  std::vector<std::string> texts;
  EXPECT_THAT(ExtractJsonTexts(line, keys, &texts), IsOk()) << line;
  return texts;
}

absl::Status ErrorOf(const std::string& line) {
  std::vector<std::string> texts;
  return ExtractJsonTexts(line, {"text"}, &texts);
}

auto IsRefused(const std::string& part) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(part));
}

TEST(JsonTextTest, TakesTheTextsOfItsKeys) {
  EXPECT_THAT(Texts(R"({"text": "a"})"), ElementsAre("a"));
  EXPECT_THAT(
      Texts(R"({"id": 5, "title": "t", "text": "", "more": [1, {"text": 3}]})", {"text", "title"}),
      ElementsAre("", "t"));
  EXPECT_THAT(Texts("\t{\"text\":\"a\"}\r"), ElementsAre("a"));
}

TEST(JsonTextTest, DecodesEscapes) {
  EXPECT_THAT(Texts(R"({"text": "\u00e9\n\ud83d\ude00\"\\\/"})"), ElementsAre("é\n😀\"\\/"));
  EXPECT_THAT(Texts(R"({"text": "\u0000"})"), ElementsAre(std::string(1, '\0')));
}

TEST(JsonTextTest, OnlyTheTopLevelCounts) {
  EXPECT_THAT(Texts(R"({"a": {"text": "inner"}, "text": "outer", "b": {"text": 1}})"),
              ElementsAre("outer"));
  EXPECT_THAT(ErrorOf(R"({"a": {"text": "inner"}})"), IsRefused("no \"text\""));
}

TEST(JsonTextTest, OfAKeyThatStandsTwiceTheLaterCounts) {
  EXPECT_THAT(Texts(R"({"text": "a", "text": "b"})"), ElementsAre("b"));
}

TEST(JsonTextTest, WhatIsNoStringIsTold) {
  EXPECT_THAT(ErrorOf(R"({"text": 5})"), IsRefused("\"text\" is a number"));
  EXPECT_THAT(ErrorOf(R"({"text": null})"), IsRefused("null"));
  EXPECT_THAT(ErrorOf(R"({"text": ["a"]})"), IsRefused("an array"));
  EXPECT_THAT(ErrorOf(R"({"text": {"text": "a"}})"), IsRefused("an object"));
  EXPECT_THAT(ErrorOf(R"(["text"])"), IsRefused("expected an object"));
  EXPECT_THAT(ErrorOf(R"("text")"), IsRefused("expected an object"));
}

TEST(JsonTextTest, BrokenSyntaxIsToldWithItsPlace) {
  for (const char* line :
       {"", "{", "{\"text\": \"a\"", "{\"text\": \"a\"} x", "{'text': 'a'}", "{\"text\": \"a\",}",
        "{\"text\": \"a\nb\"}", "{\"text\": \"\\q\"}", "{\"text\": 1e999}", "nul", "\x00"}) {
    EXPECT_THAT(ErrorOf(line), StatusIs(absl::StatusCode::kInvalidArgument)) << line;
  }
  EXPECT_THAT(ErrorOf("{\"text\": \"a\"} x"), IsRefused("column 15"));
}

TEST(JsonTextTest, BadUtf8AndHalfSurrogatesAreTold) {
  for (const char* line :
       {"{\"text\": \"\xff\"}", "{\"text\": \"\xc3\"}", "{\"text\": \"\xed\xa0\x80\"}",
        "{\"text\": \"\xc0\x80\"}", "{\"text\": \"\xf5\x80\x80\x80\"}"}) {
    EXPECT_THAT(ErrorOf(line), IsRefused("UTF-8")) << line;
  }
  EXPECT_THAT(ErrorOf(R"({"text": "\ud83d"})"), IsRefused("surrogate"));
  EXPECT_THAT(ErrorOf(R"({"text": "\ude00"})"), IsRefused("surrogate"));
}

TEST(JsonTextTest, NoNestingIsTooDeep) {
  const int depth = 1000000;
  EXPECT_THAT(
      Texts("{\"a\": " + std::string(depth, '[') + std::string(depth, ']') + ", \"text\": \"b\"}"),
      ElementsAre("b"));
  EXPECT_THAT(ErrorOf("{\"a\": " + std::string(depth, '[')),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
