#include "megatron/data/tokenizer/json/tokenizer_steps_json.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/bpe/split_pattern.h"
#include "megatron/data/tokenizer/json/json_reader.h"
#include "megatron/data/tokenizer/sentencepiece/precompiled_charsmap.h"
#include "megatron/data/tokenizer/unicode.h"
#include "megatron/data/tokenizer/wordpiece/bert_normalizer.h"

namespace megatron {
namespace {

using nlohmann::json;

absl::Status Unknown(absl::string_view what, absl::string_view type) {
  return absl::InvalidArgumentError(
      absl::StrCat("this version has no ", what, " of type '", type.substr(0, 64), "'"));
}

// The largest factor by which consecutive steps lengthen a text. Without a limit a short list of
// steps could make a short text longer than all memory.
class Growth {
 public:
  explicit Growth(double limit) : limit_(limit) {}

  absl::Status Add(double factor) {
    total_ *= std::max(factor, 1.0);
    if (total_ <= limit_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the steps can make a text ", total_, " times as long, and ", limit_, " is the limit"));
  }

 private:
  const double limit_;
  double total_ = 1;
};

// Each limit is far above the growth that the steps of any known model family cause.
constexpr double kMaxNormalizerGrowth = 4096, kMaxPreTokenizerGrowth = 64, kMaxDecoderGrowth = 64;

// A pattern is {"String": " "} or {"Regex": "…"}; only some regular expressions are known.
struct Pattern {
  std::string string, regex;  // one is empty
};

absl::StatusOr<Pattern> PatternOf(const json& step) {
  const json& member = JsonMember(step, "pattern");
  Pattern pattern;
  if (member.is_string()) pattern.string = member.get_ref<const std::string&>();
  if (member.is_object()) {
    MEGATRON_ASSIGN_OR_RETURN(pattern.string, JsonString(member, "String"));
    MEGATRON_ASSIGN_OR_RETURN(pattern.regex, JsonString(member, "Regex"));
  }
  if (pattern.string.empty() == pattern.regex.empty()) {
    return absl::InvalidArgumentError("a step has no 'pattern' that is one String or one Regex");
  }
  return pattern;
}

// Returns the members of a Sequence, stored as `list`; any other description is one step.
absl::StatusOr<std::vector<const json*>> StepsOf(const json& description, const char* list) {
  std::vector<const json*> steps;
  if (description.is_null()) return steps;
  MEGATRON_ASSIGN_OR_RETURN(const std::string type, JsonString(description, "type"));
  if (type != "Sequence") return std::vector<const json*>{&description};
  const json& members = JsonMember(description, list);
  if (!members.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat("a Sequence has no list of ", list));
  }
  for (const json& member : members) {
    MEGATRON_ASSIGN_OR_RETURN(const std::vector<const json*> inner, StepsOf(member, list));
    steps.insert(steps.end(), inner.begin(), inner.end());
  }
  return steps;
}

absl::StatusOr<Normalizer> BertNormalizerFromJson(const json& step, Growth* growth) {
  // This accounts for decomposition, lower case, and spaces around ideographs.
  MEGATRON_RETURN_IF_ERROR(growth->Add(8));
  BertNormalizerOptions options;
  options.dialect = BertDialect::kHuggingFace;
  MEGATRON_ASSIGN_OR_RETURN(options.clean_text, JsonBool(step, "clean_text", true));
  MEGATRON_ASSIGN_OR_RETURN(options.handle_chinese_chars,
                            JsonBool(step, "handle_chinese_chars", true));
  MEGATRON_ASSIGN_OR_RETURN(options.lowercase, JsonBool(step, "lowercase", true));
  MEGATRON_ASSIGN_OR_RETURN(options.strip_accents,
                            JsonBool(step, "strip_accents", options.lowercase));
  return [options](absl::string_view text, std::vector<size_t>* origins) {
    return NormalizeBert(text, options, origins);
  };
}

absl::StatusOr<Normalizer> PrecompiledFromJson(const json& step, Growth* growth) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string base64, JsonString(step, "precompiled_charsmap"));
  std::string bytes;
  if (!absl::Base64Unescape(base64, &bytes)) {
    return absl::InvalidArgumentError("'precompiled_charsmap' is not base64");
  }
  MEGATRON_ASSIGN_OR_RETURN(PrecompiledCharsmap map, PrecompiledCharsmap::Create(bytes));
  MEGATRON_RETURN_IF_ERROR(growth->Add(static_cast<double>(map.longest_replacement())));
  const auto shared = std::make_shared<const PrecompiledCharsmap>(std::move(map));
  return [shared](absl::string_view text, std::vector<size_t>* origins) {
    return NormalizePrecompiled(*shared, text, origins);
  };
}

// Returns the growth of a text in which each `pattern` becomes `content`.
double ReplacementGrowth(absl::string_view pattern, absl::string_view content) {
  return static_cast<double>(content.size()) / static_cast<double>(pattern.size());
}

absl::StatusOr<Normalizer> ReplaceFromJson(const json& step, Growth* growth) {
  MEGATRON_ASSIGN_OR_RETURN(Pattern pattern, PatternOf(step));
  MEGATRON_ASSIGN_OR_RETURN(std::string content, JsonString(step, "content"));
  const absl::string_view shortest =
      pattern.regex.empty() ? absl::string_view(pattern.string) : "  ";
  MEGATRON_RETURN_IF_ERROR(growth->Add(ReplacementGrowth(shortest, content)));
  if (pattern.regex.empty()) return ReplaceNormalizer(pattern.string, std::move(content));
  if (pattern.regex == " {2,}") return ReplaceSpacesNormalizer(std::move(content));
  return absl::InvalidArgumentError(
      absl::StrCat("the normalizer Replace knows no regular expression but ' {2,}', not '",
                   pattern.regex.substr(0, 200), "'"));
}

absl::StatusOr<Normalizer> FormNormalizer(NormalizationForm form, Growth* growth) {
  // U+0390 becomes three times as long in NFD, U+FDFA eleven times in NFKD.
  const bool compatible = form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
  MEGATRON_RETURN_IF_ERROR(growth->Add(compatible ? 11 : 3));
  return [form](absl::string_view text, std::vector<size_t>* origins) {
    return NormalizeUnicode(form, text, origins);
  };
}

absl::StatusOr<Normalizer> OneNormalizer(const json& step, Growth* growth) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string type, JsonString(step, "type"));
  if (type == "NFC") return FormNormalizer(NormalizationForm::kNfc, growth);
  if (type == "NFD") return FormNormalizer(NormalizationForm::kNfd, growth);
  if (type == "NFKC") return FormNormalizer(NormalizationForm::kNfkc, growth);
  if (type == "NFKD") return FormNormalizer(NormalizationForm::kNfkd, growth);
  if (type == "StripAccents") return StripAccentsNormalizer();
  if (type == "BertNormalizer") return BertNormalizerFromJson(step, growth);
  if (type == "Precompiled") return PrecompiledFromJson(step, growth);
  if (type == "Replace") return ReplaceFromJson(step, growth);
  if (type == "Lowercase") {
    MEGATRON_RETURN_IF_ERROR(growth->Add(1.5));  // İ and Ⱥ grow
    return
        [](absl::string_view text, std::vector<size_t>* origins) { return ToLower(text, origins); };
  }
  if (type == "Prepend") {
    MEGATRON_ASSIGN_OR_RETURN(std::string prefix, JsonString(step, "prepend"));
    MEGATRON_RETURN_IF_ERROR(growth->Add(1 + static_cast<double>(prefix.size())));
    return PrependNormalizer(std::move(prefix));
  }
  if (type == "Strip") {
    MEGATRON_ASSIGN_OR_RETURN(const bool left, JsonBool(step, "strip_left", true));
    MEGATRON_ASSIGN_OR_RETURN(const bool right, JsonBool(step, "strip_right", true));
    return StripNormalizer(left, right);
  }
  return Unknown("normalizer", type);
}

// Reads a step that splits at each occurrence of a string.
absl::StatusOr<WordStep> SplitAtStringFromJson(const json& step, std::string mark) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string behavior, JsonString(step, "behavior"));
  MEGATRON_ASSIGN_OR_RETURN(const bool invert, JsonBool(step, "invert", false));
  constexpr std::pair<const char*, SplitBehavior> kBehaviors[] = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kWithPrevious},
      {"MergedWithNext", SplitBehavior::kWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  for (const auto& [name, known] : kBehaviors) {
    if (behavior == name && !invert) return SplitAtStringStep(std::move(mark), known);
  }
  return absl::InvalidArgumentError(absl::StrCat("the pre-tokenizer Split knows no behavior '",
                                                 behavior.substr(0, 64),
                                                 invert ? "', inverted" : "'"));
}

// Reads a step that splits at each match of a known pattern and keeps all pieces.
absl::StatusOr<FirstPiece> SplitFromJson(const json& step) {
  MEGATRON_ASSIGN_OR_RETURN(const Pattern pattern, PatternOf(step));
  MEGATRON_ASSIGN_OR_RETURN(const std::string behavior, JsonString(step, "behavior"));
  MEGATRON_ASSIGN_OR_RETURN(const bool invert, JsonBool(step, "invert", false));
  // These patterns match every character, so nothing lies between two matches.
  const bool keeps_matches = invert ? behavior == "Removed" : behavior == "Isolated";
  if (!keeps_matches) {
    return absl::InvalidArgumentError(absl::StrCat("the pre-tokenizer Split knows no behavior '",
                                                   behavior.substr(0, 64),
                                                   invert ? "', inverted" : "'"));
  }
  MEGATRON_ASSIGN_OR_RETURN(
      const SplitPattern known,
      FindSplitPattern(pattern.regex.empty() ? pattern.string : pattern.regex));
  return FirstPieceOf(known);
}

absl::StatusOr<FirstPiece> DigitsFromJson(const json& step) {
  MEGATRON_ASSIGN_OR_RETURN(const bool individual, JsonBool(step, "individual_digits", false));
  return FirstPieceByDigits(individual);
}

absl::Status AddByteLevel(const json& step, bool is_last, PreTokenizer* pre_tokenizer) {
  ByteLevelSplit& split = pre_tokenizer->split;
  if (pre_tokenizer->words.size() != split.stages.size()) {
    return absl::InvalidArgumentError(
        "this version has ByteLevel only after Split at a known pattern and Digits");
  }
  MEGATRON_ASSIGN_OR_RETURN(const bool use_regex, JsonBool(step, "use_regex", true));
  MEGATRON_ASSIGN_OR_RETURN(split.add_prefix_space, JsonBool(step, "add_prefix_space", true));
  if (!is_last || (split.add_prefix_space && !split.stages.empty())) {
    return absl::InvalidArgumentError(
        "the pre-tokenizer ByteLevel must be the last, and can add a space only if it is alone");
  }
  if (use_regex) split.stages.push_back(FirstPieceOf(SplitPattern::kGpt2));
  pre_tokenizer->byte_level = true;
  return absl::OkStatus();
}

absl::StatusOr<WordStep> MetaspaceFromJson(const json& step, Growth* growth) {
  MetaspaceOptions options;
  MEGATRON_ASSIGN_OR_RETURN(options.replacement,
                            JsonString(step, "replacement", options.replacement));
  MEGATRON_ASSIGN_OR_RETURN(options.split, JsonBool(step, "split", true));
  MEGATRON_ASSIGN_OR_RETURN(const bool prefix, JsonBool(step, "add_prefix_space", true));
  MEGATRON_ASSIGN_OR_RETURN(const std::string scheme,
                            JsonString(step, "prepend_scheme", prefix ? "always" : "never"));
  if (scheme == "first") {
    options.prepend = MetaspaceOptions::Prepend::kFirst;
  } else if (scheme == "never") {
    options.prepend = MetaspaceOptions::Prepend::kNever;
  } else if (scheme != "always") {
    return Unknown("prepend_scheme", scheme);
  }
  if (options.replacement.empty()) {
    return absl::InvalidArgumentError("Metaspace has an empty 'replacement'");
  }
  // This accounts for a space and for the character before a word.
  MEGATRON_RETURN_IF_ERROR(growth->Add(2 * static_cast<double>(options.replacement.size())));
  return MetaspaceStep(std::move(options));
}

WordStep PiecesStep(FirstPiece first_piece) {
  return SplitStep(
      [first_piece](absl::string_view text) { return SplitByPieces(first_piece, text); });
}

absl::Status AddPreTokenizer(const json& step, bool is_last, Growth* growth,
                             PreTokenizer* pre_tokenizer) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string type, JsonString(step, "type"));
  if (type == "ByteLevel") return AddByteLevel(step, is_last, pre_tokenizer);
  if (type == "Split") {
    MEGATRON_ASSIGN_OR_RETURN(Pattern pattern, PatternOf(step));
    if (!pattern.string.empty() && !FindSplitPattern(pattern.string).ok()) {
      MEGATRON_ASSIGN_OR_RETURN(WordStep split,
                                SplitAtStringFromJson(step, std::move(pattern.string)));
      pre_tokenizer->words.push_back(std::move(split));
      return absl::OkStatus();
    }
  }
  if (type == "Split" || type == "Digits") {
    MEGATRON_ASSIGN_OR_RETURN(const FirstPiece piece,
                              type == "Split" ? SplitFromJson(step) : DigitsFromJson(step));
    pre_tokenizer->split.stages.push_back(piece);
    pre_tokenizer->words.push_back(PiecesStep(piece));
  } else if (type == "BertPreTokenizer") {
    pre_tokenizer->words.push_back(SplitStep(SplitBertWords));
  } else if (type == "WhitespaceSplit") {
    pre_tokenizer->words.push_back(SplitStep(SplitWhiteSpace));
  } else if (type == "Metaspace") {
    MEGATRON_ASSIGN_OR_RETURN(WordStep metaspace, MetaspaceFromJson(step, growth));
    pre_tokenizer->words.push_back(std::move(metaspace));
  } else {
    return Unknown("pre-tokenizer", type);
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenDecoder> StripDecoderFromJson(const json& step) {
  MEGATRON_ASSIGN_OR_RETURN(std::string content, JsonString(step, "content", " "));
  MEGATRON_ASSIGN_OR_RETURN(const int64_t start, JsonInt(step, "start", 0));
  MEGATRON_ASSIGN_OR_RETURN(const int64_t stop, JsonInt(step, "stop", 0));
  if (content.empty() || start < 0 || start > 1000 || stop < 0 || stop > 1000) {
    return absl::InvalidArgumentError("the decoder Strip takes 0 to 1000 of one character");
  }
  return StripDecoder(std::move(content), static_cast<int>(start), static_cast<int>(stop));
}

absl::StatusOr<TokenDecoder> ReplaceDecoderFromJson(const json& step, Growth* growth) {
  MEGATRON_ASSIGN_OR_RETURN(Pattern pattern, PatternOf(step));
  MEGATRON_ASSIGN_OR_RETURN(std::string content, JsonString(step, "content"));
  if (!pattern.regex.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the decoder Replace knows no regular expression: '", pattern.regex.substr(0, 200), "'"));
  }
  MEGATRON_RETURN_IF_ERROR(growth->Add(ReplacementGrowth(pattern.string, content)));
  return ReplaceDecoder(std::move(pattern.string), std::move(content));
}

absl::StatusOr<TokenDecoder> MetaspaceDecoderFromJson(const json& step) {
  MEGATRON_ASSIGN_OR_RETURN(std::string replacement,
                            JsonString(step, "replacement", "\xE2\x96\x81"));
  MEGATRON_ASSIGN_OR_RETURN(const bool prefix, JsonBool(step, "add_prefix_space", true));
  MEGATRON_ASSIGN_OR_RETURN(const std::string scheme,
                            JsonString(step, "prepend_scheme", prefix ? "always" : "never"));
  if (replacement.empty()) {
    return absl::InvalidArgumentError("Metaspace has an empty 'replacement'");
  }
  return MetaspaceDecoder(std::move(replacement), scheme != "never");
}

absl::StatusOr<TokenDecoder> OneDecoder(const json& step, Growth* growth) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string type, JsonString(step, "type"));
  if (type == "ByteLevel") return ByteLevelDecoder();
  if (type == "ByteFallback") return ByteFallbackDecoder();
  if (type == "Fuse") return FuseDecoder();
  if (type == "Strip") return StripDecoderFromJson(step);
  if (type == "Replace") return ReplaceDecoderFromJson(step, growth);
  if (type == "Metaspace") return MetaspaceDecoderFromJson(step);
  if (type == "WordPiece") {
    MEGATRON_ASSIGN_OR_RETURN(std::string prefix, JsonString(step, "prefix", "##"));
    MEGATRON_ASSIGN_OR_RETURN(const bool cleanup, JsonBool(step, "cleanup", true));
    MEGATRON_RETURN_IF_ERROR(growth->Add(2));  // a space before a letter
    return WordPieceDecoder(std::move(prefix), cleanup);
  }
  return Unknown("decoder", type);
}

}  // namespace

absl::StatusOr<Normalizer> NormalizerFromJson(const json& description) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<const json*> steps,
                            StepsOf(description, "normalizers"));
  Growth growth(kMaxNormalizerGrowth);
  std::vector<Normalizer> normalizers;
  for (const json* step : steps) {
    MEGATRON_ASSIGN_OR_RETURN(Normalizer normalizer, OneNormalizer(*step, &growth));
    normalizers.push_back(std::move(normalizer));
  }
  if (normalizers.empty()) return Normalizer();
  return normalizers.size() == 1 ? normalizers[0] : ChainNormalizers(std::move(normalizers));
}

absl::StatusOr<PreTokenizer> PreTokenizerFromJson(const json& description) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<const json*> steps,
                            StepsOf(description, "pretokenizers"));
  Growth growth(kMaxPreTokenizerGrowth);
  PreTokenizer pre_tokenizer;
  for (const json* step : steps) {
    MEGATRON_RETURN_IF_ERROR(AddPreTokenizer(*step, step == steps.back(), &growth, &pre_tokenizer));
  }
  return pre_tokenizer;
}

absl::StatusOr<TokenDecoder> DecoderFromJson(const json& description) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<const json*> steps, StepsOf(description, "decoders"));
  Growth growth(kMaxDecoderGrowth);
  std::vector<TokenDecoder> decoders;
  for (const json* step : steps) {
    MEGATRON_ASSIGN_OR_RETURN(TokenDecoder decoder, OneDecoder(*step, &growth));
    decoders.push_back(std::move(decoder));
  }
  if (decoders.empty()) return TokenDecoder();
  return decoders.size() == 1 ? decoders[0] : ChainDecoders(std::move(decoders));
}

}  // namespace megatron
