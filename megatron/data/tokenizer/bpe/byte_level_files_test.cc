#include "megatron/data/tokenizer/bpe/byte_level_files.h"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/data/tokenizer/bpe/byte_level_alphabet.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Ids 0 to 4 are a, b, Ġ, ab, Ġab; id 5 is the end of text.
constexpr char kVocab[] = R"({"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "<|endoftext|>": 5})";
constexpr char kMerges[] = "#version: 0.2\na b\nĠ ab\n";

std::vector<int32_t> Encode(const Tokenizer& tokenizer, absl::string_view text,
                            const EncodeOptions& options = {}) {
  std::vector<int32_t> ids;
  EXPECT_THAT(tokenizer.Encode(text, &ids, options), IsOk());
  return ids;
}

TEST(ByteLevelAlphabetTest, AllBytesAreSpelledAndReadBack) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  const std::string spelling = SpellBytes(bytes);
  std::string read = "kept";
  ASSERT_TRUE(AppendSpelledBytes(spelling, &read));
  EXPECT_EQ(read, "kept" + bytes);
  EXPECT_EQ(SpellBytes(" a\n"), "Ġa\u010a");
  EXPECT_FALSE(AppendSpelledBytes("a b", &read));
  EXPECT_EQ(read, "kept" + bytes);
}

TEST(Gpt2BpeTokenizerTest, PiecesAreMergedByRank) {
  const auto tokenizer = CreateGpt2BpeTokenizer(kVocab, kMerges);
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_EQ((*tokenizer)->vocab_size(), 6);
  EXPECT_EQ((*tokenizer)->eod(), 5);
  EXPECT_EQ((*tokenizer)->Piece(4), "Ġab");
  EXPECT_EQ((*tokenizer)->Piece(6), "");
  EXPECT_THAT(Encode(**tokenizer, "ab ab aab  b"), ElementsAre(3, 4, 2, 0, 3, 2, 2, 1));
  EXPECT_EQ((*tokenizer)->Decode({3, 4, 5, 6}), "ab ab<|endoftext|>\xEF\xBF\xBD");
}

TEST(Gpt2BpeTokenizerTest, EndOfTextIsParsedOnlyOnRequest) {
  const std::string vocab =
      absl::StrCat(R"({"a":0,"<":1,"|":2,">":3,"e":4,"n":5,"d":6,"o":7,"f":8,"t":9,"x":10,)",
                   R"("<|endoftext|>":11})");
  const auto tokenizer = CreateGpt2BpeTokenizer(vocab, "");
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_EQ(Encode(**tokenizer, "a<|endoftext|>").size(), 14u);
  EncodeOptions options;
  options.parse_special = true;
  std::vector<TextSpan> spans;
  options.spans = &spans;
  EXPECT_THAT(Encode(**tokenizer, "a<|endoftext|>a", options), ElementsAre(0, 11, 0));
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[1].begin, 1u);
  EXPECT_EQ(spans[1].end, 14u);
  EXPECT_EQ(spans[2].end, 15u);
}

TEST(Gpt2BpeTokenizerTest, AByteWithoutATokenIsAnErrorAndAppendsNothing) {
  const auto tokenizer = CreateGpt2BpeTokenizer(kVocab, kMerges);
  ASSERT_THAT(tokenizer, IsOk());
  std::vector<int32_t> ids = {7};
  std::vector<TextSpan> spans;
  EncodeOptions options;
  options.parse_special = true;
  options.spans = &spans;
  EXPECT_THAT((*tokenizer)->Encode("a<|endoftext|>c", &ids, options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0x63")));
  EXPECT_THAT(ids, ElementsAre(7));
  EXPECT_TRUE(spans.empty());
}

TEST(Gpt2BpeTokenizerTest, InvalidFilesAreRefused) {
  const struct {
    std::string vocab, merges, error;
  } kCases[] = {
      {"[]", "", "the vocabulary is no object"},
      {R"({"a": 0, "a": 1})", "", "'a' stands twice"},
      {R"({"a": 0, "b": 0})", "", "have the same id 0"},
      {R"({"a": -1})", "", "the id of 'a'"},
      {R"({"a": 1.5})", "", "the id of 'a'"},
      {R"({"a": 99999999999})", "", "the id of 'a' is no number below"},
      {R"({"a": 1e999})", "", "no JSON"},
      {R"({"a": 0)", "", "no JSON at byte"},
      {"{\"a\xff\": 0}", "", "no JSON"},
      {std::string(100000, '['), "", "more than 32 levels"},
      {R"({"a": 0})", "", "no <|endoftext|>"},
      {kVocab, "a\n", "line 1: 'a' is not two tokens"},
      {kVocab, "a b\n\na b", "line 2: '' is not"},
      {kVocab, "a b c\n", "line 1"},
      {kVocab, "a b\na b\n", "stands twice"},
      {kVocab, "b a\n", "needs 'ba', which is not in the vocabulary"},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(CreateGpt2BpeTokenizer(test.vocab, test.merges),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(test.error)));
  }
}

std::string Tiktoken(const std::vector<std::string>& tokens) {
  std::string file;
  for (size_t i = 0; i < tokens.size(); ++i) {
    absl::StrAppend(&file, absl::Base64Escape(tokens[i]), " ", i, "\n");
  }
  return file;
}

std::vector<std::string> AllBytesAnd(std::vector<std::string> more) {
  std::vector<std::string> tokens;
  for (int i = 0; i < 256; ++i) tokens.push_back(std::string(1, static_cast<char>(i)));
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

TEST(TiktokenTokenizerTest, SpecialTokensComeFirst) {
  TiktokenOptions options;
  options.num_special_tokens = 5;
  const auto tokenizer =
      CreateTiktokenTokenizer(Tiktoken(AllBytesAnd({"ab", "bc", "abc"})), options);
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_EQ((*tokenizer)->vocab_size(), 5 + 259);
  EXPECT_EQ((*tokenizer)->special().unk, 0);
  EXPECT_EQ((*tokenizer)->special().bos, 1);
  EXPECT_EQ((*tokenizer)->eod(), 2);
  EXPECT_EQ((*tokenizer)->Piece(4), "<SPECIAL_4>");
  // A whole piece is a token even if merges would not lead to it.
  EXPECT_THAT(Encode(**tokenizer, "abc"), ElementsAre(5 + 258));
  EXPECT_THAT(Encode(**tokenizer, "xabc"), ElementsAre(5 + 'x', 5 + 258));
  EXPECT_EQ((*tokenizer)->Decode({2, 5 + 256, 5 + 0xFF}), "</s>ab\xFF");
}

TEST(TiktokenTokenizerTest, MegatronsJsonIsReadUpToTheVocabularySize) {
  std::string json = "[";
  for (int i = 0; i < 256; ++i) {
    absl::StrAppend(&json, i == 0 ? "" : ",", R"({"rank":)", i, R"(,"token_bytes":")",
                    absl::Base64Escape(std::string(1, static_cast<char>(i))),
                    R"(","token_str":null})");
  }
  json += R"(,{"rank":256,"token_bytes":"YWI=","token_str":"ab"}])";
  TiktokenOptions options;
  options.num_special_tokens = 3;
  ASSERT_THAT(CreateTiktokenTokenizer(json, options), IsOk());
  EXPECT_THAT(Encode(**CreateTiktokenTokenizer(json, options), "ab"), ElementsAre(259));
  options.vocab_size = 259;
  EXPECT_THAT(Encode(**CreateTiktokenTokenizer(json, options), "ab"), ElementsAre(100, 101));
  options.vocab_size = 300;
  EXPECT_THAT(CreateTiktokenTokenizer(json, options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs 297 more")));
}

TEST(TiktokenTokenizerTest, InvalidFilesAreRefused) {
  const std::string a = "YQ== ";
  const struct {
    std::string file, error;
  } kCases[] = {
      {a + "x", "line 1"},
      {a + "1", "the rank 1 among 1 tokens leaves a hole"},
      {a + "0\n" + a + "0", "the rank 0 stands twice"},
      {a + "0\n" + a + "1", "has the ranks 0 and 1"},
      {a + "-1", "leaves a hole"},
      {a + "99999999999999999999", "line 1"},
      {"*** 0", "line 1: '*** 0' is not a token in base64 and a rank"},
      {absl::StrCat(absl::Base64Escape(std::string(2000, 'a')), " 0"), "a token of 2000 bytes"},
      {"[{}]", "entry 0 has no token_bytes"},
      {"[{\"rank\":0,\"token_bytes\":3}]", "'token_bytes' is not a string; in entry 0"},
      {"[1", "no JSON"},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(CreateTiktokenTokenizer(test.file, {}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(test.error)));
  }
  TiktokenOptions options;
  options.special_tokens = {"<s>", "</s>"};
  EXPECT_THAT(CreateTiktokenTokenizer("", options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'<unk>' must stand once")));
  options.special_tokens = {"<unk>", "<s>", "</s>", "<SPECIAL_4>"};
  EXPECT_THAT(CreateTiktokenTokenizer("", options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stands twice")));
  options.num_special_tokens = 2;
  EXPECT_THAT(CreateTiktokenTokenizer("", options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("special tokens is 2")));
}

// These tests read GPT-2's own files from the folder $MEGATRON_TEST_DATA.
class Gpt2FilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const folder = std::getenv("MEGATRON_TEST_DATA");
    if (folder == nullptr) GTEST_SKIP() << "MEGATRON_TEST_DATA is not set";
    FileSystem& fs = PosixFileSystem();
    const auto vocab = ReadFileToString(fs, JoinPath(folder, "gpt2-vocab.json"));
    const auto merges = ReadFileToString(fs, JoinPath(folder, "gpt2-merges.txt"));
    ASSERT_THAT(vocab, IsOk());
    ASSERT_THAT(merges, IsOk());
    auto tokenizer = CreateGpt2BpeTokenizer(*vocab, *merges);
    ASSERT_THAT(tokenizer, IsOk());
    tokenizer_ = *std::move(tokenizer);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(Gpt2FilesTest, TokensAreThoseOfGpt2) {
  EXPECT_EQ(tokenizer_->vocab_size(), 50257);
  EXPECT_EQ(tokenizer_->eod(), 50256);
  EXPECT_THAT(Encode(*tokenizer_, "Hello world, it's 2024!"),
              ElementsAre(15496, 995, 11, 340, 338, 48609, 0));
}

TEST_F(Gpt2FilesTest, AnyBytesAreDecodedUnchanged) {
  std::string bytes;
  for (int i = 0; i < 1 << 16; ++i) bytes += static_cast<char>(i * 2654435761u >> 11);
  for (const std::string& text : {bytes, std::string(1 << 20, 'a'), std::string(1 << 20, ' '),
                                  std::string(1 << 20, '\xCC'), std::string("a\0b\xC3", 4)}) {
    std::vector<TextSpan> spans;
    EncodeOptions options;
    options.spans = &spans;
    const std::vector<int32_t> ids = Encode(*tokenizer_, text, options);
    ASSERT_EQ(tokenizer_->Decode(ids), text);
    ASSERT_EQ(spans.size(), ids.size());
    size_t at = 0;
    for (const TextSpan span : spans) {
      ASSERT_EQ(span.begin, at);
      at = span.end;
    }
    ASSERT_EQ(at, text.size());
  }
}

TEST_F(Gpt2FilesTest, SeveralThreadsCanShareATokenizer) {
  std::string text;
  for (int i = 0; i < 20000; ++i) absl::StrAppend(&text, " word", i * 7919 % 10007);
  const std::vector<int32_t> expected = Encode(*tokenizer_, text);
  std::vector<std::thread> threads;
  std::vector<std::vector<int32_t>> results(4);
  for (std::vector<int32_t>& result : results) {
    threads.emplace_back([&] { result = Encode(*tokenizer_, text); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<int32_t>& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace megatron
