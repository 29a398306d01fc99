#include "megatron/data/tokenizer/json/tokenizer_json.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kByteLevel[] = R"json({
  "added_tokens": [
    {"id": 5, "content": "</s>", "special": true, "normalized": false},
    {"id": 6, "content": "bab", "single_word": true, "normalized": true},
    {"id": 7, "content": "<m>", "lstrip": true, "rstrip": true, "normalized": false}],
  "normalizer": NORMALIZER,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": PREFIX},
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "</s>": 5},
            "merges": [["a", "b"], "Ġ ab"], "unk_token": "a", "ignore_merges": false}})json";

std::string ByteLevel(absl::string_view normalizer = "null", absl::string_view prefix = "false") {
  return absl::StrReplaceAll(kByteLevel, {{"NORMALIZER", normalizer}, {"PREFIX", prefix}});
}

// The steps are Llama 2's.
constexpr char kFallback[] = R"json({
  "normalizer": {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
  "decoder": {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "model": {"type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": "<unk>",
            "vocab": {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3 BYTES}, "merges": ["▁ a"]}})json";

std::string Fallback(bool bytes) {
  std::string vocab;
  for (int i = 0; bytes && i < 256; ++i) {
    absl::StrAppend(&vocab, ", \"<0x", absl::Hex(i, absl::kZeroPad2), ">\": ", 4 + i);
  }
  return absl::StrReplaceAll(kFallback, {{"BYTES", vocab}});
}

std::unique_ptr<Tokenizer> Create(const std::string& json, const SpecialTokenNames& names = {}) {
  auto tokenizer = CreateTokenizerFromJson(json, names);
  EXPECT_THAT(tokenizer, IsOk());
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::vector<int32_t> Encode(const Tokenizer& tokenizer, absl::string_view text,
                            bool parse_special = false, std::vector<TextSpan>* spans = nullptr) {
  std::vector<int32_t> ids;
  EncodeOptions options;
  options.parse_special = parse_special;
  options.spans = spans;
  EXPECT_THAT(tokenizer.Encode(text, &ids, options), IsOk());
  return ids;
}

std::vector<std::string> Cut(absl::string_view text, const std::vector<TextSpan>& spans) {
  std::vector<std::string> parts;
  for (const TextSpan span : spans)
    parts.emplace_back(text.substr(span.begin, span.end - span.begin));
  return parts;
}

TEST(TokenizerJsonTest, ByteLevelBpeEncodes) {
  const auto tokenizer = Create(ByteLevel());
  EXPECT_EQ(tokenizer->vocab_size(), 8);
  EXPECT_EQ(tokenizer->eod(), 5);
  EXPECT_THAT(Encode(*tokenizer, "ab ab"), ElementsAre(3, 4));
  EXPECT_EQ(tokenizer->Decode({3, 4, 5}), "ab ab</s>");
  // A byte without a token is the unknown token.
  std::vector<TextSpan> spans;
  EXPECT_THAT(Encode(*tokenizer, "xab", false, &spans), ElementsAre(0, 3));
  EXPECT_THAT(Cut("xab", spans), ElementsAre("x", "ab"));
}

TEST(TokenizerJsonTest, AddedTokensMatchAccordingToTheirFlags) {
  const auto tokenizer = Create(ByteLevel());
  std::vector<TextSpan> spans;
  const std::string text = "bab abab b <m>  a";
  EXPECT_THAT(Encode(*tokenizer, text, false, &spans), ElementsAre(6, 4, 3, 2, 1, 7, 0));
  EXPECT_THAT(Cut(text, spans), ElementsAre("bab", " ab", "ab", " ", "b", " <m>  ", "a"));
  EXPECT_THAT(Encode(*tokenizer, "b</s>", true), ElementsAre(1, 5));
  // The spelling of a special token remains plain text, here of unknown characters.
  EXPECT_THAT(Encode(*tokenizer, "b</s>"), ElementsAre(1, 0, 0, 0, 0));
}

TEST(TokenizerJsonTest, SpansReferToTheTextBeforeNormalization) {
  std::vector<TextSpan> spans;
  auto tokenizer = Create(ByteLevel(R"({"type": "Lowercase"})", "true"));
  EXPECT_THAT(Encode(*tokenizer, "AB", false, &spans), ElementsAre(4));
  EXPECT_THAT(Cut("AB", spans), ElementsAre("AB"));
  spans.clear();
  // NFKC makes one character of "ａ" and three of "㎂"; the spans cover the original character.
  tokenizer = Create(ByteLevel(R"({"type": "Sequence", "normalizers": [{"type": "NFKC"}]})"));
  EXPECT_THAT(Encode(*tokenizer, "ａbａ", false, &spans), ElementsAre(3, 0));
  EXPECT_THAT(Cut("ａbａ", spans), ElementsAre("ａb", "ａ"));
}

TEST(TokenizerJsonTest, EveryNormalizerIsApplied) {
  const struct {
    const char *normalizer, *text;
    std::vector<int32_t> ids;
  } kCases[] = {
      {R"({"type": "Strip"})", "  ab ", {3}},
      {R"({"type": "Strip", "strip_right": false})", " ab ", {3, 2}},
      {R"({"type": "Strip"})", "   ", {}},
      {R"({"type": "Replace", "pattern": {"String": "cc"}, "content": "ab"})", "cccca", {3, 3, 0}},
      {R"({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})", "ab   ab", {3, 4}},
      {R"({"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]})",
       "\u00e0b",
       {3}},
      {R"({"type": "StripAccents"})", "a\u0903b\u0488", {3}},
      {R"({"type": "NFKD"})", "\uff41b", {3}},
      {R"({"type": "NFC"})", "ab", {3}},
      {R"({"type": "Prepend", "prepend": " "})", "ab", {4}},
      {R"({"type": "BertNormalizer"})", "A\tB", {0, 2, 1}},
  };
  for (const auto& test : kCases) {
    std::vector<TextSpan> spans;
    EXPECT_EQ(Encode(*Create(ByteLevel(test.normalizer)), test.text, false, &spans), test.ids)
        << test.normalizer;
    for (const TextSpan span : spans) {
      EXPECT_LE(span.begin, span.end);
      EXPECT_LE(span.end, std::string(test.text).size());
    }
  }
}

TEST(TokenizerJsonTest, UnknownCharactersFallBackToBytes) {
  const auto tokenizer = Create(Fallback(true));
  std::vector<TextSpan> spans;
  EXPECT_THAT(Encode(*tokenizer, "a aé", false, &spans), ElementsAre(3, 3, 4 + 0xC3, 4 + 0xA9));
  EXPECT_EQ(tokenizer->Decode({3, 3, 4 + 0xC3, 4 + 0xA9}), "a aé");
  EXPECT_EQ(tokenizer->Decode({4 + 0xC3, 2}),
            "\xEF\xBF\xBD"
            "a");
  // Invalid UTF-8 bytes are U+FFFD.
  EXPECT_THAT(Encode(*tokenizer, "\xff"), ElementsAre(1, 4 + 0xEF, 4 + 0xBF, 4 + 0xBD));
}

TEST(TokenizerJsonTest, ARunOfUnknownCharactersIsOneToken) {
  const auto tokenizer = Create(Fallback(false));
  std::vector<TextSpan> spans;
  EXPECT_THAT(Encode(*tokenizer, "aéüa", false, &spans), ElementsAre(3, 0, 2));
  EXPECT_THAT(Cut("aéüa", spans), ElementsAre("a", "éü", "a"));
}

TEST(TokenizerJsonTest, WordPieceEncodes) {
  const auto tokenizer = Create(R"json({
    "normalizer": {"type": "BertNormalizer", "lowercase": true},
    "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece"},
    "model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1, "##b": 2, "!": 3, "[CLS]": 4}}})json");
  std::vector<TextSpan> spans;
  EXPECT_THAT(Encode(*tokenizer, "AB, a!", false, &spans), ElementsAre(1, 2, 0, 1, 3));
  EXPECT_THAT(Cut("AB, a!", spans), ElementsAre("A", "B", ",", "a", "!"));
  EXPECT_EQ(tokenizer->special().cls, 4);
  EXPECT_EQ(tokenizer->Decode({1, 2, 1, 3}), "ab a!");
}

TEST(TokenizerJsonTest, UnigramEncodes) {
  const auto tokenizer = Create(R"json({
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "WhitespaceSplit"}, {"type": "Metaspace", "prepend_scheme": "always"}]},
    "decoder": {"type": "Metaspace"},
    "model": {"type": "Unigram", "unk_id": 0,
              "vocab": [["<unk>", 0], ["▁", -2], ["a", -2], ["▁a", -1], ["</s>", 0]]}})json");
  std::vector<TextSpan> spans;
  EXPECT_THAT(Encode(*tokenizer, "a  aé", false, &spans), ElementsAre(3, 3, 0));
  EXPECT_THAT(Cut("a  aé", spans), ElementsAre("a", "a", "é"));
  EXPECT_EQ(tokenizer->Decode({3, 3, 2}), "a aa");
  EXPECT_EQ(tokenizer->eod(), 4);
}

// The words of "a--b-" split at "-", each a token with unknown characters.
std::vector<std::string> SplitAtMinus(const std::string& text, const std::string& behavior) {
  const auto tokenizer = Create(absl::StrCat(
      R"json({"pre_tokenizer": {"type": "Split", "pattern": {"String": "-"}, "behavior": ")json",
      behavior, R"json("}, "model": {"type": "WordPiece", "vocab": {"[UNK]": 0}}})json"));
  std::vector<TextSpan> spans;
  Encode(*tokenizer, text, false, &spans);
  std::vector<std::string> words;
  for (const absl::string_view word : Cut(text, spans)) words.emplace_back(word);
  return words;
}

TEST(TokenizerJsonTest, ATextIsSplitAtAString) {
  EXPECT_THAT(SplitAtMinus("a-b--c", "Removed"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(SplitAtMinus("a-b--c", "Isolated"), ElementsAre("a", "-", "b", "-", "-", "c"));
  EXPECT_THAT(SplitAtMinus("a-b--c", "MergedWithPrevious"), ElementsAre("a-", "b-", "-", "c"));
  EXPECT_THAT(SplitAtMinus("a-b--c", "MergedWithNext"), ElementsAre("a", "-b", "-", "-c"));
  EXPECT_THAT(SplitAtMinus("a-b--c", "Contiguous"), ElementsAre("a", "-", "b", "--", "c"));
  EXPECT_THAT(SplitAtMinus("--", "MergedWithPrevious"), ElementsAre("-", "-"));
}

TEST(TokenizerJsonTest, SpecialTokensAreNamedByTheConfiguration) {
  const auto names = ParseSpecialTokenNames(
      R"({"eos_token": {"content": "b", "lstrip": false}, "bos_token": "a", "pad_token": null})");
  ASSERT_THAT(names, IsOk());
  const auto tokenizer = Create(ByteLevel(), *names);
  EXPECT_EQ(tokenizer->special().bos, 0);
  EXPECT_EQ(tokenizer->eod(), 1);
  EXPECT_EQ(tokenizer->special().pad, -1);
  EXPECT_THAT(ParseSpecialTokenNames(R"({"eos_token": 3})"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'eos_token'")));
}

TEST(TokenizerJsonTest, SpecialTokensAreFoundAlthoughTheFileAddsNone) {
  const auto tokenizer = Create(R"json({
    "added_tokens": [], "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1, "[MASK]": 2, "[": 3}}})json");
  EXPECT_THAT(Encode(*tokenizer, "a [MASK]a", /*parse_special=*/true), ElementsAre(1, 2, 1));
  EXPECT_THAT(Encode(*tokenizer, "a [MASK]"), ElementsAre(1, 3, 0, 0));
}

// T5's files have such vocabularies. </s> is in added_tokens, <pad> and the sentinel are not.
TEST(TokenizerJsonTest, NoTextOfAUnigramModelIsASpecialToken) {
  const auto tokenizer = Create(R"json({
    "added_tokens": [{"id": 1, "content": "</s>", "special": true, "normalized": false}],
    "pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "always"},
    "model": {"type": "Unigram", "unk_id": 0,
              "vocab": [["<unk>", 0], ["</s>", 0], ["<pad>", 0], ["<extra_id_0>", 0], ["▁", -2],
                        ["a", -2], ["<", -3], [">", -3], ["s", -3], ["p", -3], ["d", -3]]}})json");
  EXPECT_THAT(Encode(*tokenizer, "a</s>a", /*parse_special=*/true), ElementsAre(4, 5, 1, 4, 5));
  EXPECT_THAT(Encode(*tokenizer, "a</s>a"), ElementsAre(4, 5, 6, 0, 8, 7, 5));
  EXPECT_THAT(Encode(*tokenizer, "<pad>"), ElementsAre(4, 6, 9, 5, 10, 7));
  EXPECT_THAT(Encode(*tokenizer, "<extra_id_0>"), ElementsAre(4, 6, 0, 5, 0, 10, 0, 7));
  EXPECT_THAT(Encode(*tokenizer, "<unk>"), ElementsAre(4, 0));
}

TEST(TokenizerJsonTest, NoWholeWordIsASpecialToken) {
  const auto pieces = Create(R"json({
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "model": {"type": "WordPiece",
              "vocab": {"[UNK]": 0, "a": 1, "[SEP]": 2, "[": 3, "##SEP": 4, "##]": 5}}})json");
  EXPECT_THAT(Encode(*pieces, "a [SEP]", /*parse_special=*/true), ElementsAre(1, 2));
  EXPECT_THAT(Encode(*pieces, "a [SEP]"), ElementsAre(1, 3, 4, 5));
  const auto merges = Create(R"json({
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "model": {"type": "BPE", "ignore_merges": true, "merges": [], "unk_token": "?",
              "vocab": {"?": 0, "a": 1, "</s>": 2, "<": 3, ">": 4, "aa": 5}}})json");
  EXPECT_THAT(Encode(*merges, "aa </s>", /*parse_special=*/true), ElementsAre(5, 2));
  EXPECT_THAT(Encode(*merges, "aa </s>"), ElementsAre(5, 3, 0, 0, 4));
}

// Some files name "!" as padding.
TEST(TokenizerJsonTest, ASpecialTokenOfOneCharacterRemainsItsCharacter) {
  SpecialTokenNames names;
  names.pad = "b";
  const auto tokenizer = Create(ByteLevel(), names);
  EXPECT_EQ(tokenizer->special().pad, 1);
  EXPECT_THAT(Encode(*tokenizer, "b"), ElementsAre(1));
}

// Returns the file with one part of it replaced.
std::string With(absl::string_view part, absl::string_view other) {
  return absl::StrReplaceAll(ByteLevel(), {{part, other}});
}

std::string WithPostProcessor(absl::string_view description) {
  return With(R"("decoder")", absl::StrCat(R"("post_processor": )", description, R"(, "decoder")"));
}

TEST(TokenizerJsonTest, TokensOfThePostProcessorAreReportedAndNotEncoded) {
  const std::string t5 = R"({"type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>"}}],
    "pair": [], "special_tokens": {"</s>": {"id": "</s>", "ids": [5], "tokens": ["</s>"]}}})";
  const auto tokenizer = Create(WithPostProcessor(t5));
  EXPECT_THAT(tokenizer->special().before, ElementsAre());
  EXPECT_THAT(tokenizer->special().after, ElementsAre(5));
  EXPECT_THAT(Encode(*tokenizer, "ab"), ElementsAre(3));

  const std::string bert = R"({"type": "BertProcessing", "sep": ["b", 1], "cls": ["a", 0]})";
  const std::string both = absl::StrCat(
      R"({"type": "Sequence", "processors": [{"type": "ByteLevel"}, )", t5, ", ", bert, "]}");
  const auto surrounded = Create(WithPostProcessor(both));
  EXPECT_THAT(surrounded->special().before, ElementsAre(0));
  EXPECT_THAT(surrounded->special().after, ElementsAre(5, 1));
  EXPECT_THAT(Create(ByteLevel())->special().after, ElementsAre());
}

TEST(TokenizerJsonTest, UnknownPartsAreRefused) {
  const std::string split = R"({"type": "Split", "pattern": {"Regex": "[a-z]+"}, "behavior": )";
  const std::string pre = R"({"type": "ByteLevel", "add_prefix_space": false})";
  const struct {
    std::string json, error;
  } kCases[] = {
      {"{}", "there is no 'model'"},
      {"[1]", "there is no 'model'"},
      {"{\"model\": 1}", "there is no 'model'"},
      {"{", "no JSON"},
      {ByteLevel(R"({"type": "Rot13"})"), "no normalizer of type 'Rot13'"},
      {ByteLevel("3"), "no normalizer of type ''"},
      {ByteLevel(R"({"type": "Sequence"})"), "no list of normalizers"},
      {ByteLevel(R"({"type": "Replace", "content": ""})"), "no 'pattern'"},
      {ByteLevel(R"({"type": "Replace", "pattern": {"Regex": "x+"}})"), "'x+'"},
      {ByteLevel(R"({"type": "Precompiled", "precompiled_charsmap": "*"})"), "not base64"},
      {With(pre, split + R"("Isolated"})"), "no scanner for the pattern '[a-z]+'"},
      {With(pre, split + R"("Removed"})"), "knows no behavior 'Removed'"},
      {With(pre,
            R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Isolated",)"
            R"("pattern": {"String": "x"}}, )" +
                pre + "]}"),
       "ByteLevel only after Split at a known pattern"},
      {With(pre, R"({"type": "Split", "pattern": {"String": "x"}, "behavior": "Merged"})"),
       "knows no behavior 'Merged'"},
      {With(pre, R"({"type": "UnicodeScripts"})"), "no pre-tokenizer of type 'UnicodeScripts'"},
      {With(pre, R"({"type": "Metaspace", "prepend_scheme": "last"})"), "'last'"},
      {With(pre, R"({"type": "Sequence", "pretokenizers": [)" + pre + "," + pre + "]}"),
       "must be the last"},
      {With(R"("type": "BPE")", R"("type": "WordPiece")"), "byte-level pre-tokenizer"},
      {With(R"("type": "BPE")", R"("type": "WordLevel")"), "byte-level pre-tokenizer"},
      {With(R"("ignore_merges": false)", R"("ignore_merges": 1)"), "'ignore_merges'"},
      {With(R"("ignore_merges": false)", R"("dropout": 0.1)"), "'dropout'"},
      {With(R"("ignore_merges": false)", R"("end_of_word_suffix": "x")"), "suffixes"},
      {With(R"("Ġ ab")", R"("Ġ")"), "merge 1 of the model"},
      {With(R"("Ġ ab")", R"("b a")"), "needs 'ba'"},
      {With(R"({"type": "ByteLevel"})", R"({"type": "CTC"})"), "no decoder of type 'CTC'"},
      {WithPostProcessor(R"({"type": "Frame"})"), "no post-processor of type 'Frame'"},
      {WithPostProcessor(R"({"type": "Sequence"})"), "no list of processors"},
      {WithPostProcessor(R"({"type": "BertProcessing", "sep": ["b", 1]})"), "no 'cls'"},
      {WithPostProcessor(R"({"type": "RobertaProcessing", "sep": ["b", 8], "cls": ["b", 1]})"),
       "no token's"},
      {WithPostProcessor(R"({"type": "TemplateProcessing", "single": []})"), "leaves the text out"},
      {WithPostProcessor(R"({"type": "TemplateProcessing", "single":
         [{"Sequence": {"id": "A"}}, {"Sequence": {"id": "B"}}]})"),
       "is not of one text"},
      {WithPostProcessor(
           R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}]})"),
       "no ids of 'x'"},
      {WithPostProcessor(absl::StrCat(
           R"({"type": "TemplateProcessing", "special_tokens": {"x": {"ids": [5]}}, "single": [)",
           absl::StrJoin(std::vector<std::string>(300, R"({"SpecialToken": {"id": "x"}})"), ","),
           "]}")),
       "more than 256 tokens"},
      {With(R"("id": 5)", R"("id": 4)"), "have the same id 4"},
      {With(R"("id": 7)", R"("id": 2000000000)"), "beyond"},
      {With(R"("id": 7)", R"("id": -7)"), "no id below 2^31"},
      {With(R"("id": 7)", R"("id": 18446744073709551615)"), "'id' is not a whole number"},
      {With(R"("content": "bab")", R"("content": "")"), "no content"},
      {R"({"model": {"type": "WordPiece", "vocab": {"[UNK]": 0}, "max_input_chars_per_word": -1}})",
       "'max_input_chars_per_word' is -1"},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(CreateTokenizerFromJson(test.json, {}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(test.error)))
        << test.json;
  }
}

// The list has sixty times {"type": "Replace", …}: without the limit, one letter would become 2^60.
TEST(TokenizerJsonTest, StepsThatLengthenTextsTooMuchAreRefused) {
  const std::string doubles = R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})";
  const std::string spaces = R"({"type": "Metaspace", "replacement": "  "})";
  const auto sequence = [](absl::string_view list, const std::string& step) {
    return absl::StrCat(R"({"type": "Sequence", ")", list, R"(": [)",
                        absl::StrJoin(std::vector<std::string>(60, step), ","), "]}");
  };
  const std::string file = Fallback(false);
  const std::string model = file.substr(file.find(R"("model")"));
  for (const std::string& steps :
       {absl::StrCat(R"("normalizer": )", sequence("normalizers", doubles)),
        absl::StrCat(R"("pre_tokenizer": )", sequence("pretokenizers", spaces)),
        absl::StrCat(R"("decoder": )", sequence("decoders", doubles))}) {
    EXPECT_THAT(CreateTokenizerFromJson(absl::StrCat("{", steps, ",", model), {}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is the limit")))
        << steps;
  }
}

// "́" and "̣" are reordered in NFD, and are a token each.
TEST(TokenizerJsonTest, SpansOfReorderedMarksBeginBeforeTheyEnd) {
  const auto tokenizer = Create(R"json({"normalizer": {"type": "NFD"},
      "model": {"type": "BPE", "vocab": {"a": 0, "\u0301": 1, "\u0323": 2}, "merges": []}})json");
  std::vector<TextSpan> spans;
  const std::string text = "a\u0301\u0323a";
  EXPECT_THAT(Encode(*tokenizer, text, false, &spans), ElementsAre(0, 2, 1, 0));
  EXPECT_THAT(Cut(text, spans), ElementsAre("a", "\u0301\u0323", "\u0301\u0323", "a"));
}

}  // namespace
}  // namespace megatron
