#include "megatron/data/tokenizer/sentencepiece/sentencepiece_tokenizer.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/tokenizer/sentencepiece/sentencepiece_testing.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Flavor = SentencePieceTokenizerOptions::Flavor;
using Kind = SentencePieceModel::Kind;
using Type = SentencePieceModel::Type;

std::unique_ptr<SentencePieceTokenizer> Make(const SentencePieceModel& model,
                                             Flavor flavor = Flavor::kLlama2,
                                             int32_t extra_ids = 0) {
  SentencePieceTokenizerOptions options;
  options.flavor = flavor;
  options.vocab_extra_ids = extra_ids;
  auto tokenizer = SentencePieceTokenizer::FromBytes(SerializeSentencePieceModel(model), options);
  EXPECT_THAT(tokenizer.status(), IsOk());
  return *std::move(tokenizer);
}

absl::Status Error(const SentencePieceModel& model) {
  return SentencePieceTokenizer::FromBytes(SerializeSentencePieceModel(model), {}).status();
}

std::vector<int32_t> Encode(const Tokenizer& tokenizer, absl::string_view text,
                            const EncodeOptions& options = {}) {
  std::vector<int32_t> ids;
  EXPECT_THAT(tokenizer.Encode(text, &ids, options), IsOk());
  return ids;
}

// Returns the spellings of the pieces of `text`.
std::vector<std::string> Pieces(const Tokenizer& tokenizer, absl::string_view text) {
  std::vector<std::string> pieces;
  for (const int32_t id : Encode(tokenizer, text)) pieces.push_back(tokenizer.Piece(id));
  return pieces;
}

SentencePieceModel BpeModel() {
  return MakeSentencePieceModel(Type::kBpe, {{"a", -10},
                                             {"b", -11},
                                             {"▁", -12},
                                             {"ab", -1},
                                             {"▁a", -2},
                                             {"ba", -3},
                                             {"▁ab", -4},
                                             {"abab", -5},
                                             {"▁▁", -6}});
}

SentencePieceModel UnigramModelForTests() {
  return MakeSentencePieceModel(
      Type::kUnigram, {{"▁", -3}, {"▁a", -2}, {"a", -4}, {"b", -4}, {"ab", -5}, {"▁ab", -6}});
}

TEST(SentencePieceTokenizerTest, BpeMergesTheBestScoreFirst) {
  const auto tokenizer = Make(BpeModel());
  EXPECT_THAT(Pieces(*tokenizer, "abab"), ElementsAre("▁ab", "ab"));
  EXPECT_THAT(Pieces(*tokenizer, "aba  ba"), ElementsAre("▁ab", "a", "▁", "ba"));
  EXPECT_THAT(Pieces(*tokenizer, "bababa"), ElementsAre("▁", "b", "abab", "a"));
  EXPECT_THAT(Pieces(*tokenizer, ""), ElementsAre());
  EXPECT_THAT(Pieces(*tokenizer, "   "), ElementsAre());
}

TEST(SentencePieceTokenizerTest, BpeMergesCharactersThatAreNoPieces) {
  const auto tokenizer =
      Make(MakeSentencePieceModel(Type::kBpe, {{"▁", -5}, {"xy", -1}, {"▁z", -2}, {"xyz", -9}}));
  EXPECT_THAT(Pieces(*tokenizer, "xyz"), ElementsAre("▁", "xyz"));
  EXPECT_THAT(Pieces(*tokenizer, "zx"), ElementsAre("▁z", "<unk>"));
}

TEST(SentencePieceTokenizerTest, UnigramChoosesTheGreatestSum) {
  const auto tokenizer = Make(UnigramModelForTests());
  EXPECT_THAT(Pieces(*tokenizer, "ab b"), ElementsAre("▁ab", "▁", "b"));
  EXPECT_THAT(Pieces(*tokenizer, "aab"), ElementsAre("▁a", "ab"));
}

TEST(SentencePieceTokenizerTest, ARunOfUnknownCharactersIsOneToken) {
  for (const Type type : {Type::kBpe, Type::kUnigram}) {
    SentencePieceModel model = BpeModel();
    model.type = type;
    const auto tokenizer = Make(model);
    EncodeOptions options;
    std::vector<TextSpan> spans;
    options.spans = &spans;
    EXPECT_THAT(Encode(*tokenizer, "xéab", options), ElementsAre(5, 0, 6));
    ASSERT_EQ(spans.size(), 3u);
    EXPECT_EQ(spans[0].end, 0u);  // the added space is not part of the text
    EXPECT_EQ(spans[1].begin, 0u);
    EXPECT_EQ(spans[1].end, 3u);
    EXPECT_EQ(spans[2].end, 5u);
    EXPECT_EQ(tokenizer->Decode({5, 0, 6}), " \u2047 ab");
  }
}

TEST(SentencePieceTokenizerTest, UnknownCharactersFallBackToBytes) {
  for (const Type type : {Type::kBpe, Type::kUnigram}) {
    const auto tokenizer = Make(MakeSentencePieceModel(type, {{"▁", -1}, {"a", -2}}, true));
    const std::vector<int32_t> ids = Encode(*tokenizer, "aé\n");
    EXPECT_THAT(ids, ElementsAre(259, 260, 3 + 0xc3, 3 + 0xa9, 3 + 0x0a));
    EXPECT_EQ(tokenizer->Decode(ids), "aé\n");
    EXPECT_EQ(tokenizer->Decode({260, 3 + 0xc3, 260, 3 + 0xe3, 3 + 0x81}), "a\ufffda\ufffd\ufffd");
    EXPECT_THAT(Pieces(*tokenizer, "\xff"), ElementsAre("▁", "<0xEF>", "<0xBF>", "<0xBD>"));
  }
}

TEST(SentencePieceTokenizerTest, SpansCoverTheText) {
  SentencePieceModel model = UnigramModelForTests();
  model.normalizer.charsmap = MakeCharsmap({{"ﬁ", "ab"}, {"Q", " "}});
  const auto tokenizer = Make(model);
  EncodeOptions options;
  std::vector<TextSpan> spans;
  options.spans = &spans;
  const std::string text = "  ﬁ Q éab\xff b ";
  Encode(*tokenizer, text, options);
  std::string joined = text.substr(0, spans[0].begin);
  size_t end = spans[0].begin;
  for (const TextSpan& span : spans) {
    EXPECT_EQ(span.begin, end);
    end = span.end;
  }
  EXPECT_EQ(spans.front().begin, 2u);
  EXPECT_EQ(end, text.size() - 1);
}

TEST(SentencePieceTokenizerTest, WhiteSpaceIsHandledByTheModelsOptions) {
  const auto pieces = [](bool prefix, bool collapse, bool suffix) {
    SentencePieceModel model = UnigramModelForTests();
    model.normalizer.add_dummy_prefix = prefix;
    model.normalizer.remove_extra_whitespaces = collapse;
    model.treat_whitespace_as_suffix = suffix;
    std::string joined;
    for (const std::string& piece : Pieces(*Make(model), " b  b ")) joined += piece;
    return joined;
  };
  EXPECT_EQ(pieces(true, true, false), "▁b▁b");
  EXPECT_EQ(pieces(false, true, false), "b▁b");
  EXPECT_EQ(pieces(true, false, false), "▁▁b▁▁b▁");
  EXPECT_EQ(pieces(true, true, true), "b▁b▁");
}

TEST(SentencePieceTokenizerTest, NormalizationRulesAreAppliedFirst) {
  SentencePieceModel model = UnigramModelForTests();
  model.normalizer.charsmap = MakeCharsmap({{"é", "ab"}, {"x", ""}, {"\u3000", " "}});
  const auto tokenizer = Make(model);
  EXPECT_THAT(Pieces(*tokenizer, "é\u3000xb\u3000"), ElementsAre("▁ab", "▁", "b"));
}

TEST(SentencePieceTokenizerTest, UserDefinedPiecesAreNeitherNormalizedNorSplit) {
  for (const Type type : {Type::kBpe, Type::kUnigram}) {
    SentencePieceModel model = BpeModel();
    model.type = type;
    model.normalizer.charsmap = MakeCharsmap({{"x", "a"}});
    model.pieces.push_back({"xab", 0, Kind::kUserDefined});
    const auto tokenizer = Make(model);
    EXPECT_THAT(Pieces(*tokenizer, "bxabb"), ElementsAre("▁", "b", "xab", "b"));
    EXPECT_THAT(Pieces(*tokenizer, "bx"), ElementsAre("▁", "ba"));
  }
}

TEST(SentencePieceTokenizerTest, DecodeRemovesTheAddedSpace) {
  const auto tokenizer = Make(BpeModel());
  const auto decode = [&](absl::string_view text) {
    return tokenizer->Decode(Encode(*tokenizer, text));
  };
  EXPECT_EQ(decode("ab ba"), "ab ba");
  EXPECT_EQ(tokenizer->Decode({1, 9, 2}), "ab");                   // <s> and </s> give nothing
  EXPECT_EQ(tokenizer->Decode({11, 3}), " a");                     // one space is lost
  EXPECT_EQ(tokenizer->Decode({3, -1, 12, 3}), "a\ufffd\ufffda");  // invalid ids
}

TEST(SentencePieceTokenizerTest, DecodeAppliesTheDenormalizer) {
  SentencePieceModel model = BpeModel();
  model.denormalizer_charsmap = MakeCharsmap({{"a", "xy"}});
  const auto tokenizer = Make(model);
  EXPECT_EQ(tokenizer->Decode({9, 5, 4}), "xyb b");
}

TEST(SentencePieceTokenizerTest, TheSentencePieceTokenizerFlavorAddsSpecialTokens) {
  const auto tokenizer = Make(BpeModel(), Flavor::kSentencePiece, 2);
  const SpecialTokens& special = tokenizer->special();
  EXPECT_EQ(special.unk, 0);
  EXPECT_EQ(special.bos, 1);
  EXPECT_EQ(special.eos, 2);
  EXPECT_EQ(special.cls, 12);
  EXPECT_EQ(special.sep, 13);
  EXPECT_EQ(special.eod, 14);
  EXPECT_EQ(special.mask, 15);
  EXPECT_EQ(special.pad, 16);
  EXPECT_THAT(special.sentinels, ElementsAre(17, 18));
  EXPECT_EQ(tokenizer->vocab_size(), 19);
  EXPECT_EQ(tokenizer->Piece(16), "<PAD>");
  EXPECT_EQ(tokenizer->Piece(18), "<extra_id_1>");
  EXPECT_EQ(tokenizer->Piece(19), "");
  EXPECT_EQ(tokenizer->Decode({9, 14, 9, 1}), "ab <EOD> ab <s> ");
  EncodeOptions options;
  options.parse_special = true;
  std::vector<TextSpan> spans;
  options.spans = &spans;
  EXPECT_THAT(Encode(*tokenizer, "ab<extra_id_0>a", options), ElementsAre(9, 17, 7));
  EXPECT_EQ(spans[1].begin, 2u);
  EXPECT_EQ(spans[2].begin, 14u);
  EXPECT_EQ(spans[2].end, 15u);
}

TEST(SentencePieceTokenizerTest, OtherFlavorsHaveOnlyTheModelsIds) {
  for (const Flavor flavor : {Flavor::kLlama2, Flavor::kGptSentencePiece}) {
    const auto tokenizer = Make(BpeModel(), flavor);
    EXPECT_EQ(tokenizer->vocab_size(), 12);
    EXPECT_EQ(tokenizer->eod(), 2);
    EXPECT_EQ(tokenizer->special().pad, -1);
    EXPECT_EQ(tokenizer->special().cls, -1);
    EncodeOptions options;
    options.parse_special = true;
    EXPECT_THAT(Encode(*tokenizer, "a</s>", options), ElementsAre(7, 2));
    EXPECT_THAT(Encode(*tokenizer, "a</s>"), ElementsAre(7, 0));
  }
  SentencePieceTokenizerOptions options;
  options.vocab_extra_ids = 1;
  EXPECT_THAT(SentencePieceTokenizer::FromBytes(SerializeSentencePieceModel(BpeModel()), options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("vocab_extra_ids")));
}

TEST(SentencePieceTokenizerTest, ErrorsTellWhatIsWrongWithAModel) {
  const std::string whole = SerializeSentencePieceModel(BpeModel());
  EXPECT_THAT(SentencePieceTokenizer::FromBytes("no model", {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(SentencePieceTokenizer::FromBytes("", {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown piece")));
  EXPECT_THAT(SentencePieceTokenizer::FromBytes(whole.substr(0, whole.size() - 1), {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cut off")));
  const auto invalid = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  SentencePieceModel model = BpeModel();
  model.type = Type::kWord;
  EXPECT_THAT(Error(model), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("word")));
  model = BpeModel();
  model.pieces[5].kind = Kind::kUnused;
  EXPECT_THAT(Error(model), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("piece 5")));
  model = BpeModel();
  model.pieces[4].text = "a";
  EXPECT_THAT(Error(model), invalid("spelled like another"));
  model = BpeModel();
  model.pieces[4].text = "";
  EXPECT_THAT(Error(model), invalid("piece 4 is empty"));
  model = BpeModel();
  model.pieces[4].text = std::string(8000, 'a');
  EXPECT_THAT(Error(model), invalid("too long"));
  model = BpeModel();
  model.pieces[4].score = 1.0f / 0.0f;
  EXPECT_THAT(Error(model), invalid("finite"));
  model = BpeModel();
  model.pieces[4].kind = Kind::kUnknown;
  EXPECT_THAT(Error(model), invalid("second unknown"));
  model = BpeModel();
  model.pieces[4].kind = Kind::kByte;
  EXPECT_THAT(Error(model), invalid("byte"));
  model = BpeModel();
  model.byte_fallback = true;
  EXPECT_THAT(Error(model), invalid("<0x00>"));
  model = BpeModel();
  model.normalizer.charsmap = "abc";
  EXPECT_THAT(Error(model), invalid("rules"));
  EXPECT_THAT(SentencePieceTokenizer::Create("/nonexistent/a.model", {}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent/a.model")));
}

TEST(SentencePieceTokenizerTest, AdversarialTextTakesLittleTime) {
  for (const Type type : {Type::kBpe, Type::kUnigram}) {
    SentencePieceModel model = BpeModel();
    model.type = type;
    model.normalizer.remove_extra_whitespaces = false;
    const auto tokenizer = Make(model);
    std::string marks;
    for (int i = 0; i < 1 << 19; ++i) marks += "\u0301";
    EXPECT_EQ(Encode(*tokenizer, marks).size(), 2u);
    EXPECT_GT(Encode(*tokenizer, std::string(1 << 20, ' ')).size(), size_t{1} << 18);
    EXPECT_GT(Encode(*tokenizer, std::string(1 << 20, 'a')).size(), size_t{1} << 18);
  }
}

// The models come with the tests' data.
TEST(SentencePieceTokenizerTest, DecodingInvertsEncodingOfPlainText) {
  const char* const data = std::getenv("MEGATRON_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "MEGATRON_TEST_DATA is not set";
  const auto tokenizer =
      SentencePieceTokenizer::Create(std::string(data) + "/sentencepiece_en.model", {});
  ASSERT_THAT(tokenizer.status(), IsOk());
  EXPECT_EQ((*tokenizer)->vocab_size(), 1000);
  const std::string text = "I saw a girl with a telescope.";
  EXPECT_THAT(Pieces(**tokenizer, text), ElementsAre("▁I", "▁saw", "▁a", "▁girl", "▁with", "▁a",
                                                     "▁", "te", "le", "s", "c", "o", "pe", "."));
  EXPECT_EQ((*tokenizer)->Decode(Encode(**tokenizer, text)), text);
}

}  // namespace
}  // namespace megatron
