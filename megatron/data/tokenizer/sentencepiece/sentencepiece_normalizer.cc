#include "megatron/data/tokenizer/sentencepiece/sentencepiece_normalizer.h"

#include <utility>

#include "absl/strings/match.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

// The result while it is built.
class Output {
 public:
  Output(absl::string_view space, size_t size, std::vector<size_t>* origins)
      : space_(space), origins_(origins) {
    text_.reserve(size + size / 2 + 8);
    if (origins_ != nullptr) origins_->clear();
  }

  void Append(char c, size_t origin) {
    text_.push_back(c);
    if (origins_ != nullptr) origins_->push_back(origin);
  }

  // Appends characters that are unchanged.
  void AppendRun(absl::string_view run, size_t origin) {
    text_.append(run.data(), run.size());
    if (origins_ == nullptr) return;
    for (size_t i = 0; i < run.size(); ++i) origins_->push_back(origin + i);
  }

  void AppendSpace(size_t origin) {
    for (const char c : space_) Append(c, origin);
  }

  // Returns the end of the text that corresponds to the stripped result.
  size_t StripTrailingSpaces(size_t end) {
    while (absl::EndsWith(text_, space_)) {
      text_.resize(text_.size() - space_.size());
      if (origins_ == nullptr) continue;
      end = (*origins_)[text_.size()];
      origins_->resize(text_.size());
    }
    return end;
  }

  std::string Finish(size_t end) {
    if (origins_ != nullptr) origins_->push_back(end);
    return std::move(text_);
  }

 private:
  const absl::string_view space_;
  std::string text_;
  std::vector<size_t>* const origins_;
};

}  // namespace

std::string SentencePieceNormalizer::Normalize(absl::string_view text,
                                               std::vector<size_t>* origins) const {
  const absl::string_view space = options_.escape_whitespaces ? kSentencePieceSpace : " ";
  const bool collapse = options_.remove_extra_whitespaces;
  Output out(space, text.size(), origins);
  size_t at = 0;
  while (collapse && at < text.size()) {
    const Step step = Next(text.substr(at));
    if (step.replacement != " ") break;
    at += step.length;
  }
  if (at == text.size()) return out.Finish(at);
  if (options_.add_dummy_prefix && !options_.space_last) out.AppendSpace(at);
  bool after_space = collapse;
  while (at < text.size()) {
    const size_t plain = CountPlain(text.substr(at));
    if (plain > 0) {
      out.AppendRun(text.substr(at, plain), at);
      after_space = false;
      at += plain;
      continue;
    }
    Step step = Next(text.substr(at));
    while (after_space && absl::StartsWith(step.replacement, " "))
      step.replacement.remove_prefix(1);
    for (const char c : step.replacement) {
      if (c == ' ') {
        out.AppendSpace(at);
      } else {
        out.Append(c, at);
      }
    }
    if (!step.replacement.empty()) {
      after_space = collapse && step.replacement.back() == ' ';
    }
    at += step.length;
  }
  if (collapse) at = out.StripTrailingSpaces(at);
  if (options_.add_dummy_prefix && options_.space_last) out.AppendSpace(at);
  return out.Finish(at);
}

size_t SentencePieceNormalizer::CountPlain(absl::string_view text) const {
  if (!kept_.empty()) return 0;
  size_t i = 0;
  while (i < text.size() && text[i] != ' ' && rules_.Keeps(static_cast<unsigned char>(text[i])) &&
         (i + 1 == text.size() || static_cast<unsigned char>(text[i + 1]) < 0x80)) {
    ++i;
  }
  return i;
}

SentencePieceNormalizer::Step SentencePieceNormalizer::Next(absl::string_view text) const {
  const size_t kept = kept_.LongestPrefix(text).length;
  if (kept > 0) return {text.substr(0, kept), kept};
  const auto first = static_cast<unsigned char>(text[0]);
  const bool before_ascii = text.size() == 1 || static_cast<unsigned char>(text[1]) < 0x80;
  if (before_ascii && rules_.Keeps(first)) return {text.substr(0, 1), 1};
  const PrecompiledCharsmap::Rule rule = rules_.Longest(text);
  if (rule.length > 0) return {rule.replacement, rule.length};
  const Utf8Char c = DecodeUtf8(text, 0);
  if (IsInvalidByte(c)) return {"\ufffd", 1};
  return {text.substr(0, c.length), c.length};
}

}  // namespace megatron
