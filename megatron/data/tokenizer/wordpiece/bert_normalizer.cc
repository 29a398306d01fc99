#include "megatron/data/tokenizer/wordpiece/bert_normalizer.h"

#include <cstdint>
#include <utility>

#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

constexpr char32_t kCapitalSigma = 0x3a3, kSmallSigma = 0x3c3, kFinalSigma = 0x3c2;

bool IsTab(char32_t c) { return c == '\t' || c == '\n' || c == '\r'; }

bool IsAsciiPunctuation(char32_t c) {
  return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
         (c >= 123 && c <= 126);
}

// Returns whether a character is skipped when looking for a Σ's neighbours: it is case-ignorable,
// or is removed before case matters.
bool IsCaseIgnorable(char32_t c) {
  if (CharClasses::Get().Is(c, kCaseIgnorable)) return true;
  return CharClasses::Get().Is(c, kControl) && !IsTab(c);
}

bool IsCased(char32_t c) { return CharClasses::Get().Is(c, kCased); }

// Returns whether a Σ of text[at, at + 2) ends a word, as lower case defines it: a cased letter
// precedes it and none follows it, apart from case-ignorable characters in between.
bool IsFinalSigma(absl::string_view text, size_t at, bool cased_before) {
  if (!cased_before) return false;
  for (size_t i = at + 2; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    if (!IsCaseIgnorable(c.code_point)) return !IsCased(c.code_point);
    i += c.length;
  }
  return true;
}

class Normalizer {
 public:
  Normalizer(absl::string_view text, const BertNormalizerOptions& options,
             std::vector<size_t>* origins)
      : classes_(CharClasses::Get()),
        text_(text),
        options_(options),
        origins_(origins),
        lower_sigmas_(options.lowercase && options.dialect == BertDialect::kMegatron &&
                      text.find("\u03a3") != absl::string_view::npos) {
    out_.reserve(text.size() + text.size() / 8);
    if (origins_ != nullptr) origins_->clear();
  }

  std::string Run() {
    for (size_t at = 0; at < text_.size();) {
      const Utf8Char c = DecodeUtf8(text_, at);
      Clean(c.code_point, at, c.length);
      at += c.length;
    }
    FlushAccented();
    if (origins_ != nullptr) origins_->push_back(text_.size());
    return std::move(out_);
  }

 private:
  bool Megatron() const { return options_.dialect == BertDialect::kMegatron; }

  bool IsIdeograph(char32_t c) const {
    return classes_.Is(c, kCjk) && (Megatron() || c < 0x2b820 || c > 0x2b91f);
  }

  void Clean(char32_t c, size_t origin, size_t length) {
    const uint32_t removed = kControl | kFormat | (Megatron() ? 0u : uint32_t{kPrivateUse});
    if (options_.clean_text) {
      if (c == kReplacementCharacter || (classes_.Is(c, removed) && !IsTab(c))) return;
      if (classes_.Is(c, kWhiteSpace)) c = ' ';
    }
    if (lower_sigmas_) c = LowerSigma(c, origin);
    if (options_.handle_chinese_chars && IsIdeograph(c)) {
      Decompose(' ', origin);
      Decompose(c, origin);
      Decompose(' ', origin + length);
    } else {
      Decompose(c, origin);
    }
  }

  char32_t LowerSigma(char32_t c, size_t origin) {
    const bool cased_before = cased_before_;
    if (!IsCaseIgnorable(c)) cased_before_ = IsCased(c);
    if (c != kCapitalSigma) return c;
    return IsFinalSigma(text_, origin, cased_before) ? kFinalSigma : kSmallSigma;
  }

  // Characters that only lose their accents together with their neighbours are collected in
  // accented_.
  void Decompose(char32_t c, size_t origin) {
    if (!options_.strip_accents) return Lower(c, origin);
    if (classes_.Is(c, kStableNfd)) {
      FlushAccented();
      if (!classes_.Is(c, kNonspacing)) Lower(c, origin);
      return;
    }
    AppendUtf8(c, &accented_);
    accented_origins_.resize(accented_.size(), origin);
  }

  void FlushAccented() {
    if (accented_.empty()) return;
    std::vector<size_t> origins;
    const std::string decomposed = NormalizeUnicode(NormalizationForm::kNfd, accented_, &origins);
    for (size_t i = 0; i < decomposed.size();) {
      const Utf8Char c = DecodeUtf8(decomposed, i);
      if (!classes_.Is(c.code_point, kNonspacing)) {
        Lower(c.code_point, accented_origins_[origins[i]]);
      }
      i += c.length;
    }
    accented_.clear();
    accented_origins_.clear();
  }

  void Lower(char32_t c, size_t origin) {
    if (!options_.lowercase) {
      AppendUtf8(c, &out_);
    } else if (c < 0x80) {
      out_.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
    } else if (!classes_.Is(c, kUpper | kTitle | kNumber | kSymbol)) {
      AppendUtf8(c, &out_);
    } else {
      std::string one;
      AppendUtf8(c, &one);
      out_ += ToLower(one);
    }
    if (origins_ != nullptr) origins_->resize(out_.size(), origin);
  }

  const CharClasses& classes_;
  const absl::string_view text_;
  const BertNormalizerOptions options_;
  std::vector<size_t>* const origins_;
  const bool lower_sigmas_;  // the text has Σ, and the dialect distinguishes its two lower cases
  std::string out_;
  std::string accented_;
  std::vector<size_t> accented_origins_;
  bool cased_before_ = false;
};

}  // namespace

std::string NormalizeBert(absl::string_view text, const BertNormalizerOptions& options,
                          std::vector<size_t>* origins) {
  return Normalizer(text, options, origins).Run();
}

std::vector<TextSpan> SplitBertWords(absl::string_view text) {
  const CharClasses& classes = CharClasses::Get();
  std::vector<TextSpan> words;
  bool within = false;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    const size_t end = i + c.length;
    const uint32_t bits = classes[c.code_point];
    if ((bits & kPunctuation) != 0 || IsAsciiPunctuation(c.code_point)) {
      words.push_back({i, end});
      within = false;
    } else if ((bits & kWhiteSpace) != 0) {
      within = false;
    } else if (within) {
      words.back().end = end;
    } else {
      words.push_back({i, end});
      within = true;
    }
    i = end;
  }
  return words;
}

}  // namespace megatron
