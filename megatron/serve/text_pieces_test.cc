#include "megatron/serve/text_pieces.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/philox.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"
#include "megatron/data/tokenizer/json/tokenizer_json.h"
#include "megatron/data/tokenizer/null_tokenizer.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron::serve {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> BytesOf(absl::string_view text) {
  std::vector<int32_t> ids;
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

std::vector<std::string> PiecesOf(const Tokenizer& tokenizer, absl::Span<const int32_t> context,
                                  absl::Span<const int32_t> ids) {
  TokenText text(tokenizer, context);
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(text.Add(id));
  pieces.push_back(text.Finish());
  return pieces;
}

std::string Joined(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

TEST(TokenTextTest, ACodePointComesWithItsLastToken) {
  const ByteLevelTokenizer tokenizer;
  EXPECT_THAT(PiecesOf(tokenizer, {}, BytesOf("a\u20acb\U0001F600")),
              ElementsAre("a", "", "", "\u20ac", "b", "", "", "", "\U0001F600", ""));
  // The context is not shown, and completes what it began.
  EXPECT_THAT(PiecesOf(tokenizer, BytesOf("x"), BytesOf("y")), ElementsAre("y", ""));
  // What can become no code point is shown at once; what never did, at the end.
  EXPECT_THAT(PiecesOf(tokenizer, {}, BytesOf("\xFF\xE2\x82")),
              ElementsAre("\uFFFD", "", "", "\uFFFD\uFFFD"));
  EXPECT_THAT(PiecesOf(tokenizer, {}, BytesOf("\xE2\x41")), ElementsAre("", "\uFFFD\x41", ""));
}

TEST(TokenTextTest, AnyBytesGiveTheTextThatTheyGiveAtOnce) {
  const ByteLevelTokenizer tokenizer;
  constexpr char kBytes[] = "\xE2\x82\xAC\xF0\x9F\x98\x80\xED\xA0\xC3\xA9 az\xFF\xF4\x8F\xBF\xBF";
  for (uint32_t round = 0; round < 200; ++round) {
    std::string bytes;
    for (uint32_t i = 0; i < 40; ++i) {
      const uint32_t word = Philox(DeriveKey(1, 0, round, 0), {{i, 0, 0, 0}}).word[0];
      bytes += kBytes[word % (sizeof(kBytes) - 1)];
    }
    const std::vector<std::string> pieces = PiecesOf(tokenizer, {}, BytesOf(bytes));
    EXPECT_EQ(Joined(pieces), ReplaceInvalidUtf8(bytes)) << round;
    for (const std::string& piece : pieces) EXPECT_TRUE(IsValidUtf8(piece));
  }
}

// Tokens of words that may begin with a space, and of single bytes, as Llama 2 has them.
std::string WordsAndBytes() {
  std::string vocab = R"("<unk>": 0, "▁": 1, "a": 2, "▁a": 3)";
  for (int i = 0; i < 256; ++i)
    absl::StrAppend(&vocab, ", \"<0x", absl::Hex(i, absl::kZeroPad2), ">\": ", 4 + i);
  return absl::StrCat(R"json({
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": "<unk>",
      "vocab": {)json",
                      vocab, R"json(}, "merges": ["▁ a"]}})json");
}

TEST(TokenTextTest, ASpaceBelongsToATokenThatFollowsAnother) {
  const auto tokenizer = CreateTokenizerFromJson(WordsAndBytes(), {});
  ASSERT_THAT(tokenizer, ::absl_testing::IsOk());
  EXPECT_THAT(PiecesOf(**tokenizer, {}, {3, 3, 2}), ElementsAre("a", " a", "a", ""));
  EXPECT_THAT(PiecesOf(**tokenizer, {3}, {3, 2}), ElementsAre(" a", "a", ""));
  // This decoder makes U+FFFD of bytes that are no code point yet.
  EXPECT_THAT(PiecesOf(**tokenizer, {3}, {4 + 0xE2, 4 + 0x82, 4 + 0xAC, 3}),
              ElementsAre("", "", "\u20ac", " a", ""));
  EXPECT_EQ(Joined(PiecesOf(**tokenizer, {3}, {4 + 0xE2, 3})), "\uFFFD a");
  EXPECT_EQ(TokenBytes(**tokenizer, 3), " a");
  EXPECT_EQ(TokenBytes(**tokenizer, 2), "a");
}

TEST(TokenTextTest, NumbersAreSeparated) {
  const NullTokenizer tokenizer(100);
  EXPECT_THAT(PiecesOf(tokenizer, {7}, {12, 5}), ElementsAre(" 12", " 5", ""));
  EXPECT_EQ(TokenBytes(tokenizer, 12), " 12");
}

TEST(TokenBytesTest, WhatIsNoTextIsSpelled) {
  const ByteLevelTokenizer tokenizer;
  EXPECT_EQ(ShownBytes(TokenBytes(tokenizer, 'x')), "x");
  EXPECT_EQ(ShownBytes(TokenBytes(tokenizer, 0xE2)), "bytes:\\xe2");
  EXPECT_EQ(ShownBytes(TokenBytes(tokenizer, 256)), "<|endoftext|>");
  EXPECT_EQ(CountCodePoints("a\u20ac\U0001F600"), 3);
}

// Feeds the text in pieces of so many bytes; "|" ends the pieces that are given out.
std::string Stopped(const std::vector<std::string>& stops, absl::string_view text, size_t size) {
  StopFinder finder(stops);
  std::string decided;
  for (size_t at = 0; at < text.size(); at += size) decided += finder.Add(text.substr(at, size));
  return decided + (finder.found() ? "|" : finder.Finish());
}

TEST(StopFinderTest, FindsTheFirstHoweverTheTextComes) {
  for (size_t size = 1; size < 12; ++size) {
    EXPECT_EQ(Stopped({"end"}, "the enend", size), "the en|") << size;
    EXPECT_EQ(Stopped({"\n\n", "x"}, "a\nb\n\nx", size), "a\nb|") << size;
    EXPECT_EQ(Stopped({"bc", "abcd", "b"}, "abcd", size), "a|") << size;
    EXPECT_EQ(Stopped({"c", "bc"}, "abcd", size), "a|") << size;
    EXPECT_EQ(Stopped({"endings"}, "an ending", size), "an ending") << size;
    EXPECT_EQ(Stopped({}, "a text", size), "a text") << size;
    EXPECT_EQ(Stopped({"a"}, "a text", size), "|") << size;
  }
}

TEST(StopFinderTest, HoldsBackOnlyWhatMayBeAStop) {
  StopFinder finder({"User:", "\n\n"});
  EXPECT_EQ(finder.Add("Hi U"), "Hi ");
  EXPECT_EQ(finder.Add("s"), "");
  EXPECT_EQ(finder.Add("A\n"), "UsA");
  EXPECT_EQ(finder.Add("b"), "\nb");
  EXPECT_EQ(finder.Add("Use"), "");
  EXPECT_EQ(finder.Finish(), "Use");
}

}  // namespace
}  // namespace megatron::serve
