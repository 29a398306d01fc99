#include "megatron/data/tokenizer/wordpiece/wordpiece_tokenizer.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kVocabulary[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\nwant\n##ed\n,\nHello\nhello\n日\n'"
    "\ns\n";

std::unique_ptr<WordPieceTokenizer> Make(bool lower_case, int32_t extra_ids = 0) {
  WordPieceTokenizerOptions options;
  options.lower_case = lower_case;
  options.vocab_extra_ids = extra_ids;
  auto tokenizer = WordPieceTokenizer::FromBytes(kVocabulary, options);
  EXPECT_THAT(tokenizer.status(), IsOk());
  return *std::move(tokenizer);
}

std::vector<int32_t> Encode(const Tokenizer& tokenizer, const std::string& text,
                            const EncodeOptions& options = {}) {
  std::vector<int32_t> ids;
  EXPECT_THAT(tokenizer.Encode(text, &ids, options), IsOk());
  return ids;
}

TEST(WordPieceTokenizerTest, WordsAreSplitIntoTheLongestPieces) {
  const auto tokenizer = Make(true);
  EXPECT_THAT(Encode(*tokenizer, "UNaffable, wanted"), ElementsAre(5, 6, 7, 10, 8, 9));
  EXPECT_THAT(Encode(*tokenizer, "Héllo日hello's"), ElementsAre(12, 13, 12, 14, 15));
  EXPECT_THAT(Encode(*tokenizer, ""), ElementsAre());
  EXPECT_EQ(tokenizer->name(), "BertWordPieceLowerCase");
}

TEST(WordPieceTokenizerTest, CasedVocabulariesKeepCaseAndAccents) {
  const auto tokenizer = Make(false);
  EXPECT_THAT(Encode(*tokenizer, "Hello hello Héllo"), ElementsAre(11, 12, 1));
  EXPECT_EQ(tokenizer->name(), "BertWordPieceCase");
}

TEST(WordPieceTokenizerTest, AWordThatCannotBeSplitIsUnknownAsAWhole) {
  const auto tokenizer = Make(true);
  EXPECT_THAT(Encode(*tokenizer, "unwant"), ElementsAre(1));
  EXPECT_THAT(Encode(*tokenizer, "affable"), ElementsAre(1));
  std::string longest = "un";
  while (longest.size() < 200) longest += "ed";
  EXPECT_EQ(Encode(*tokenizer, longest).size(), 100u);
  EXPECT_THAT(Encode(*tokenizer, longest + "ed"), ElementsAre(1));
}

TEST(WordPieceTokenizerTest, SpecialTokensAreMegatrons) {
  const auto tokenizer = Make(true, 2);
  const SpecialTokens& special = tokenizer->special();
  EXPECT_EQ(special.pad, 0);
  EXPECT_EQ(special.unk, 1);
  EXPECT_EQ(special.cls, 2);
  EXPECT_EQ(special.sep, 3);
  EXPECT_EQ(special.mask, 4);
  EXPECT_EQ(special.bos, 16);
  EXPECT_EQ(special.eos, 17);
  EXPECT_EQ(tokenizer->eod(), 17);
  EXPECT_THAT(special.sentinels, ElementsAre(18, 19));
  EXPECT_EQ(tokenizer->vocab_size(), 20);
  EXPECT_EQ(tokenizer->Piece(16), "[BOS]");
  EXPECT_EQ(tokenizer->Piece(19), "<extra_id_1>");
  EXPECT_EQ(tokenizer->Piece(6), "##aff");
  EXPECT_EQ(tokenizer->Piece(20), "");
  EXPECT_EQ(tokenizer->Piece(-1), "");
}

TEST(WordPieceTokenizerTest, SpecialTokensAreParsedOnlyOnRequest) {
  const auto tokenizer = Make(true);
  EXPECT_THAT(Encode(*tokenizer, "[MASK]"), ElementsAre(1, 1, 1));
  EncodeOptions options;
  options.parse_special = true;
  std::vector<TextSpan> spans;
  options.spans = &spans;
  EXPECT_THAT(Encode(*tokenizer, "un[MASK] un", options), ElementsAre(5, 4, 5));
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[1].begin, 2u);
  EXPECT_EQ(spans[1].end, 8u);
  EXPECT_EQ(spans[2].begin, 9u);
  EXPECT_EQ(spans[2].end, 11u);
}

TEST(WordPieceTokenizerTest, SpansReferToTheOriginalText) {
  const auto tokenizer = Make(true);
  EncodeOptions options;
  std::vector<TextSpan> spans;
  options.spans = &spans;
  const std::string text = "  Hé\u0301llo\x01 UNaffable日";
  EXPECT_THAT(Encode(*tokenizer, text, options), ElementsAre(12, 5, 6, 7, 13));
  std::vector<std::string> parts;
  for (const TextSpan& span : spans)
    parts.push_back(text.substr(span.begin, span.end - span.begin));
  EXPECT_THAT(parts, ElementsAre("Hé\u0301llo", "UN", "aff", "able", "日"));
}

TEST(WordPieceTokenizerTest, DecodedTextIsMegatrons) {
  const auto tokenizer = Make(true);
  EXPECT_EQ(tokenizer->Decode({5, 6, 7, 10, 8, 9}), "unaffable, wanted");
  EXPECT_EQ(tokenizer->Decode({12, 14, 15}), "hello's");
  EXPECT_EQ(tokenizer->Decode({2, 12, 99, 3}), "[CLS] hello \ufffd [SEP]");
  EXPECT_EQ(tokenizer->Decode({}), "");
}

TEST(WordPieceTokenizerTest, AllLineEndsAreAccepted) {
  const auto tokenizer =
      WordPieceTokenizer::FromBytes("[PAD]\r\n[UNK] \r[CLS]\n\n\t[SEP]\u3000\n[MASK]", {});
  ASSERT_THAT(tokenizer.status(), IsOk());
  EXPECT_EQ((*tokenizer)->Piece(1), "[UNK]");
  EXPECT_EQ((*tokenizer)->Piece(3), "");
  EXPECT_EQ((*tokenizer)->Piece(4), "[SEP]");
  EXPECT_EQ((*tokenizer)->special().bos, 6);
}

TEST(WordPieceTokenizerTest, ErrorsTellWhatIsWrongWithAVocabulary) {
  const auto error = [](const std::string& bytes) {
    return WordPieceTokenizer::FromBytes(bytes, {}).status();
  };
  EXPECT_THAT(error("a\n"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[UNK]")));
  EXPECT_THAT(error("[UNK]\n[CLS]\n[SEP]\n[PAD]\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[MASK]")));
  EXPECT_THAT(error("a\nb\na \n"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lines 1 and 3")));
  EXPECT_THAT(error("a\n\xff\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("line 2")));
  WordPieceTokenizerOptions options;
  options.vocab_extra_ids = -1;
  EXPECT_THAT(WordPieceTokenizer::FromBytes(kVocabulary, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(WordPieceTokenizer::Create("/nonexistent/vocab.txt", {}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent/vocab.txt")));
}

TEST(WordPieceTokenizerTest, AnyBytesCanBeEncoded) {
  const auto tokenizer = Make(true);
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  EncodeOptions options;
  std::vector<TextSpan> spans;
  options.spans = &spans;
  for (const TextSpan& span : (Encode(*tokenizer, bytes, options), spans)) {
    EXPECT_LT(span.begin, span.end);
    EXPECT_LE(span.end, bytes.size());
  }
  EXPECT_FALSE(spans.empty());
}

}  // namespace
}  // namespace megatron
