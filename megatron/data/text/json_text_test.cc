#include "megatron/data/text/json_text.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/text/json_string.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Texts(const std::string& line,
                               const std::vector<std::string>& keys = {"text"}) {
  std::vector<JsonText> texts;
  BadLineKind kind;
  EXPECT_THAT(ExtractJsonTexts(line, keys, &texts, &kind), IsOk()) << line;
  std::vector<std::string> result;
  for (const JsonText& text : texts) {
    EXPECT_FALSE(text.is_list) << line;
    EXPECT_THAT(text.ends, ElementsAre(text.text.size())) << line;
    result.push_back(text.text);
  }
  return result;
}

std::vector<std::string> List(const std::string& line) {
  std::vector<JsonText> texts;
  BadLineKind kind;
  EXPECT_THAT(ExtractJsonTexts(line, {"text"}, &texts, &kind), IsOk()) << line;
  EXPECT_TRUE(texts.at(0).is_list) << line;
  std::vector<std::string> pieces;
  size_t begin = 0;
  for (const size_t end : texts[0].ends) {
    pieces.push_back(texts[0].text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

struct Refusal {
  BadLineKind kind;
  std::string message;
};

Refusal Refuse(const std::string& line) {
  std::vector<JsonText> texts;
  Refusal refusal;
  const absl::Status status = ExtractJsonTexts(line, {"text"}, &texts, &refusal.kind);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument)) << line;
  refusal.message = std::string(status.message());
  return refusal;
}

auto IsA(BadLineKind kind, const std::string& part = "") {
  return AllOf(Field(&Refusal::kind, kind), Field(&Refusal::message, HasSubstr(part)));
}

TEST(JsonTextTest, TextsOfTheKeysAreExtracted) {
  EXPECT_THAT(Texts(R"({"text": "a"})"), ElementsAre("a"));
  EXPECT_THAT(
      Texts(R"({"id": 5, "title": "t", "text": "", "more": [1, {"text": 3}]})", {"text", "title"}),
      ElementsAre("", "t"));
  EXPECT_THAT(Texts("\t{\"text\":\"a\"}\r"), ElementsAre("a"));
}

TEST(JsonTextTest, EscapesAreDecoded) {
  EXPECT_THAT(Texts(R"({"text": "\u00e9\n\ud83d\ude00\"\\\/"})"), ElementsAre("é\n😀\"\\/"));
  EXPECT_THAT(Texts(R"({"text": "\b\f\n\r\t\u00E9\u20ac"})"), ElementsAre("\b\f\n\r\té€"));
  EXPECT_THAT(Texts(R"({"text": "\u0000"})"), ElementsAre(std::string(1, '\0')));
  EXPECT_THAT(Texts(R"({"te\u0078t": "a"})"), ElementsAre("a"));
}

// The scan handles eight bytes at a time, so every length is tried.
TEST(JsonTextTest, TheEndOfAStringIsFoundAtEveryPosition) {
  for (size_t length = 0; length < 40; ++length) {
    const std::string run(length, 'x');
    EXPECT_THAT(Texts("{\"text\": \"" + run + "\"}"), ElementsAre(run));
    EXPECT_THAT(Texts("{\"text\": \"" + run + "\\n\"}"), ElementsAre(run + "\n"));
    EXPECT_THAT(Texts("{\"text\": \"" + run + "é日😀" + run + "\"}"),
                ElementsAre(run + "é日😀" + run));
    EXPECT_THAT(Refuse("{\"text\": \"" + run + "\x1f\"}"), IsA(BadLineKind::kBrokenJson));
    EXPECT_THAT(Refuse("{\"text\": \"" + run), IsA(BadLineKind::kBrokenJson));
  }
}

TEST(JsonTextTest, OnlyKeysOfTheTopLevelCount) {
  EXPECT_THAT(Texts(R"({"a": {"text": "inner"}, "text": "outer", "b": {"text": 1}})"),
              ElementsAre("outer"));
  EXPECT_THAT(Refuse(R"({"a": {"text": "inner"}})"), IsA(BadLineKind::kMissingKey, "no \"text\""));
}

TEST(JsonTextTest, TheLaterOfTwoEqualKeysCounts) {
  EXPECT_THAT(Texts(R"({"text": "a", "text": "b"})"), ElementsAre("b"));
  EXPECT_THAT(Texts(R"({"text": 5, "text": "b"})"), ElementsAre("b"));
  EXPECT_THAT(Refuse(R"({"text": "a", "text": 5})"), IsA(BadLineKind::kWrongType));
  EXPECT_THAT(List(R"({"text": "a", "text": ["b"]})"), ElementsAre("b"));
}

TEST(JsonTextTest, AListOfTextsIsOneTextInPieces) {
  EXPECT_THAT(List(R"({"text": ["One.", "", "Tw\u006f."]})"), ElementsAre("One.", "", "Two."));
  EXPECT_THAT(List(R"({"text": [ ]})"), IsEmpty());
  EXPECT_THAT(Refuse(R"({"text": ["a", 5]})"),
              IsA(BadLineKind::kWrongType, "a list with something"));
  EXPECT_THAT(Refuse(R"({"text": [["a"]]})"),
              IsA(BadLineKind::kWrongType, "a list with something"));
  EXPECT_THAT(Refuse(R"({"text": ["a", "\ud800"]})"), IsA(BadLineKind::kLoneSurrogate));
  EXPECT_THAT(Refuse(R"({"text": ["a",]})"), IsA(BadLineKind::kBrokenJson));
}

TEST(JsonTextTest, ValuesThatAreNoTextAreErrors) {
  EXPECT_THAT(Refuse(R"({"text": 5})"), IsA(BadLineKind::kWrongType, "\"text\" is a number"));
  EXPECT_THAT(Refuse(R"({"text": null})"), IsA(BadLineKind::kWrongType, "null"));
  EXPECT_THAT(Refuse(R"({"text": true})"), IsA(BadLineKind::kWrongType, "a boolean"));
  EXPECT_THAT(Refuse(R"({"text": {"text": "a"}})"), IsA(BadLineKind::kWrongType, "an object"));
  EXPECT_THAT(Refuse(R"(["text"])"), IsA(BadLineKind::kWrongType, "expected an object"));
  EXPECT_THAT(Refuse(R"("text")"), IsA(BadLineKind::kWrongType, "expected an object"));
}

TEST(JsonTextTest, SyntaxErrorsGiveTheirPosition) {
  for (const char* line : {"",
                           "{",
                           "{\"text\"",
                           "{\"text\":",
                           "{\"text\": \"a\"",
                           "{\"text\": \"a\"} x",
                           "{'text': 'a'}",
                           "{\"text\": \"a\",}",
                           "{\"text\": \"a\nb\"}",
                           "{\"text\": \"\\q\"}",
                           "{\"text\": \"\\u12g4\"}",
                           "{\"text\": \"\\u12\"}",
                           "{\"text\": \"\\",
                           "nul",
                           "{\"a\": [1 2]}",
                           "{\"a\": [1}",
                           "{\"a\": {\"b\" 1}}",
                           "{\"a\": {1: 2}}",
                           "{\"a\": 01}",
                           "{\"a\": .5}",
                           "{\"a\": 1.}",
                           "{\"a\": 1e}",
                           "{\"a\": -}",
                           "{\"a\": +1}",
                           "{\"a\": nan}"}) {
    EXPECT_THAT(Refuse(line), IsA(BadLineKind::kBrokenJson, "column ")) << line;
  }
  EXPECT_THAT(Refuse("{\"text\": \"a\"} x"), IsA(BadLineKind::kBrokenJson, "column 15"));
}

TEST(JsonTextTest, NumbersThatPythonAcceptsAreAccepted) {
  EXPECT_THAT(Texts(R"({"a": [NaN, Infinity, -Infinity, 1e999, -0.5E+2, 123456789012345678901234],
                        "text": "b"})"),
              ElementsAre("b"));
}

TEST(JsonTextTest, BadUtf8IsAnErrorAtAnyPosition) {
  for (const char* bytes :
       {"\xff", "\xc3", "\xed\xa0\x80", "\xc0\x80", "\xf5\x80\x80\x80", "\x80"}) {
    const std::string text = bytes;
    EXPECT_THAT(Refuse("{\"text\": \"" + text + "\"}"), IsA(BadLineKind::kBadUtf8, "UTF-8"));
    EXPECT_THAT(Refuse("{\"a\": \"" + text + "\", \"text\": \"\"}"), IsA(BadLineKind::kBadUtf8));
  }
}

TEST(JsonTextTest, ALoneSurrogateIsAnErrorOnlyInExtractedTexts) {
  for (const char* text : {R"(\ud83d)", R"(\ude00)", R"(\ud83d\u0041)", R"(\ud83dx)"}) {
    EXPECT_THAT(Refuse(std::string("{\"text\": \"") + text + "\"}"),
                IsA(BadLineKind::kLoneSurrogate, "surrogate"));
    EXPECT_THAT(Texts(std::string("{\"a\": \"") + text + "\", \"text\": \"b\"}"), ElementsAre("b"));
  }
}

TEST(JsonTextTest, AnyNestingDepthIsAccepted) {
  const int depth = 1000000;
  EXPECT_THAT(
      Texts("{\"a\": " + std::string(depth, '[') + std::string(depth, ']') + ", \"text\": \"b\"}"),
      ElementsAre("b"));
  EXPECT_THAT(Refuse("{\"a\": " + std::string(depth, '[')), IsA(BadLineKind::kBrokenJson));
}

TEST(JsonTextTest, EveryTextIsReadBackFromItsJson) {
  for (const std::string& text :
       {std::string(), std::string("plain"), std::string("\"\\/\b\f\n\r\t"),
        std::string("\0\x1f\x7f", 3), std::string("é日😀 and a\nlong run of plain text é")}) {
    std::string line = "{\"text\": ";
    AppendJsonString(text, &line);
    EXPECT_THAT(Texts(line + "}"), ElementsAre(text));
    EXPECT_EQ(line.find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace megatron
