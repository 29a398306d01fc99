#include "megatron/data/tokenizer/bpe/split_pattern.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

enum class Contractions { kNone, kExactCase, kAnyCase, kAnyCaseAfterWord };
enum class Words {
  kAfterSpace,    //  ?\p{L}+
  kAfterAny,      // [^\r\n\p{L}\p{N}]?\p{L}+
  kCasedAfterAny  // same as kAfterAny, and a word starts at a capital
};

struct Rules {
  Contractions contractions;
  Words words;
  int max_digits;        // 0: any number, and a space may precede
  bool newlines_follow;  // symbols include the line breaks after them
  bool slashes_follow;   // symbols include the slashes after them
  bool newline_runs;     // \s*[\r\n]+ is a piece
  bool last_run_whole;   // \s+$ is a piece and takes precedence over other white space
};

constexpr Rules kGpt2Rules = {
    Contractions::kExactCase, Words::kAfterSpace, 0, false, false, false, false};
constexpr Rules kCl100kRules = {
    Contractions::kAnyCase, Words::kAfterAny, 3, true, false, true, false};
constexpr Rules kQwen2Rules = {
    Contractions::kAnyCase, Words::kAfterAny, 1, true, false, true, false};
constexpr Rules kO200kRules = {
    Contractions::kAnyCaseAfterWord, Words::kCasedAfterAny, 3, true, true, true, false};
constexpr Rules kTekkenRules = {
    Contractions::kNone, Words::kCasedAfterAny, 1, true, true, true, false};
constexpr Rules kTiktokenV1Rules = {
    Contractions::kNone, Words::kAfterAny, 1, true, false, true, false};
constexpr Rules kCl100kTiktokenRules = {
    Contractions::kAnyCase, Words::kAfterAny, 3, true, false, true, true};

// A word's capitals, and its small letters, may include marks and letters without case.
constexpr uint32_t kCaseless = kModifier | kOtherLetter | kMark;
constexpr uint32_t kCapitals = kUpper | kTitle | kCaseless;
constexpr uint32_t kSmalls = kLower | kCaseless;

// Reads a text's characters forward.
class Cursor {
 public:
  Cursor(const char* at, const char* end) : at_(at), end_(end), classes_(CharClasses::Get()) {
    Read();
  }

  bool AtEnd() const { return at_ == end_; }
  const char* at() const { return at_; }
  // All of these return false at the end.
  bool Is(uint32_t classes) const { return (bits_ & classes) != 0; }
  bool IsChar(char c) const { return at_ != end_ && *at_ == c; }
  bool IsNewline() const { return IsChar('\n') || IsChar('\r'); }
  bool IsSymbol() const { return !AtEnd() && !Is(kLetter | kNumber | kWhiteSpace); }

  // Moves to the next character. Must not be called at the end.
  void Next() {
    at_ += length_;
    Read();
  }
  void SkipAll(uint32_t classes) {
    while (Is(classes)) Next();
  }

 private:
  void Read() {
    if (at_ == end_) {
      bits_ = 0;
      return;
    }
    const Utf8Char c = DecodeUtf8({at_, static_cast<size_t>(end_ - at_)}, 0);
    length_ = c.length;
    bits_ = classes_[c.code_point];
  }

  const char* at_;
  const char* end_;
  const CharClasses& classes_;
  uint32_t length_ = 0;
  uint32_t bits_ = 0;
};

// Returns the end of the contraction that begins with the apostrophe at `at`, or `at` if there is
// none: 's 't 'm 'd 're 've 'll. U+017F, the long s, is another case of s.
template <bool any_case>
const char* AfterContraction(const char* at, const char* end) {
  if (end - at < 2 || *at != '\'') return at;
  const auto lower = [&](char c) -> char {
    return any_case && 'A' <= c && c <= 'Z' ? c - 'A' + 'a' : c;
  };
  const char first = lower(at[1]);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if (end - at < 3) return at;
  if (any_case && at[1] == '\xC5' && at[2] == '\xBF') return at + 3;
  const char second = lower(at[2]);
  const bool two =
      (second == 'e' && (first == 'r' || first == 'v')) || (second == 'l' && first == 'l');
  return two ? at + 3 : at;
}

// Returns the end of capitals followed by small letters; letters without case are both. Returns
// null if no word starts here.
//
//     U*l+ | U+l*, where U is anything but a small letter and l anything but a capital
const char* AfterCasedWord(Cursor at) {
  // End of the last character among the capitals that may be either.
  const char* caseless_end = nullptr;
  const char* const start = at.at();
  while (at.Is(kCapitals)) {
    const bool caseless = at.Is(kCaseless);
    at.Next();
    if (caseless) caseless_end = at.at();
  }
  if (at.Is(kSmalls)) {
    at.SkipAll(kSmalls);
    return at.at();
  }
  if (caseless_end != nullptr) return caseless_end;
  return at.at() == start ? nullptr : at.at();
}

// Returns whether U*l+ matches here, the alternative that is tried first.
bool EndsInSmallLetter(Cursor at) {
  bool caseless = false;
  for (; at.Is(kCapitals); at.Next()) caseless |= at.Is(kCaseless);
  return caseless || at.Is(kSmalls);
}

// A character that is no letter, number or line break may precede the word. Each alternative is
// tried with it and without it before the next one is: a mark is both such a character and part of
// a word.
const char* AfterCasedWordWithPrefix(const Cursor& start) {
  if (start.AtEnd() || start.Is(kLetter | kNumber) || start.IsNewline()) {
    return AfterCasedWord(start);
  }
  Cursor after_first = start;
  after_first.Next();
  if (EndsInSmallLetter(after_first)) return AfterCasedWord(after_first);
  if (EndsInSmallLetter(start)) return AfterCasedWord(start);
  const char* const with_prefix = AfterCasedWord(after_first);
  return with_prefix != nullptr ? with_prefix : AfterCasedWord(start);
}

template <const Rules& rules>
const char* AfterWord(const Cursor& start, const char* end) {
  if (rules.words == Words::kCasedAfterAny) {
    const char* const word = AfterCasedWordWithPrefix(start);
    if (word == nullptr || rules.contractions != Contractions::kAnyCaseAfterWord) return word;
    return AfterContraction<true>(word, end);
  }
  Cursor at = start;
  if (!at.Is(kLetter)) {
    const bool prefix =
        rules.words == Words::kAfterSpace ? at.IsChar(' ') : !at.Is(kNumber) && !at.IsNewline();
    if (!prefix) return nullptr;
    at.Next();
    if (!at.Is(kLetter)) return nullptr;
  }
  at.SkipAll(kLetter);
  return at.at();
}

template <const Rules& rules>
const char* AfterNumber(Cursor at) {
  if (rules.max_digits == 0) {
    if (at.IsChar(' ')) at.Next();
    if (!at.Is(kNumber)) return nullptr;
    at.SkipAll(kNumber);
    return at.at();
  }
  if (!at.Is(kNumber)) return nullptr;
  for (int i = 0; i < rules.max_digits && at.Is(kNumber); ++i) at.Next();
  return at.at();
}

template <const Rules& rules>
const char* AfterSymbols(Cursor at) {
  if (at.IsChar(' ')) at.Next();
  if (!at.IsSymbol()) return nullptr;
  while (at.IsSymbol()) at.Next();
  if (rules.newlines_follow) {
    while (at.IsNewline() || (rules.slashes_follow && at.IsChar('/'))) at.Next();
  }
  return at.at();
}

// The last space of a run belongs to what follows; in the patterns this is \s+(?!\S)|\s+.
template <const Rules& rules>
const char* AfterSpaces(Cursor at) {
  const char* const start = at.at();
  const char* last = start;
  const char* newlines_end = nullptr;
  while (at.Is(kWhiteSpace)) {
    const bool newline = at.IsNewline();
    last = at.at();
    at.Next();
    if (newline) newlines_end = at.at();
  }
  if (rules.last_run_whole && at.AtEnd()) return at.at();
  if (rules.newline_runs && newlines_end != nullptr) return newlines_end;
  return at.AtEnd() || last == start ? at.at() : last;
}

template <const Rules& rules>
size_t FirstPieceBy(absl::string_view text) {
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const Cursor start(begin, end);
  const char* after = nullptr;
  if (rules.contractions == Contractions::kExactCase && *begin == '\'') {
    after = AfterContraction<false>(begin, end);
  } else if (rules.contractions == Contractions::kAnyCase && *begin == '\'') {
    after = AfterContraction<true>(begin, end);
  }
  if (after != nullptr && after != begin) return after - begin;
  after = AfterWord<rules>(start, end);
  if (after == nullptr) after = AfterNumber<rules>(start);
  if (after == nullptr) after = AfterSymbols<rules>(start);
  if (after == nullptr) after = AfterSpaces<rules>(start);
  return after - begin;
}

template <bool individual>
size_t FirstDigitsOrOthers(absl::string_view text) {
  Cursor at(text.data(), text.data() + text.size());
  const bool number = at.Is(kNumber);
  do {
    at.Next();
  } while (!at.AtEnd() && at.Is(kNumber) == number && !(number && individual));
  return at.at() - text.data();
}

struct Spelling {
  SplitPattern pattern;
  absl::string_view regex;
};

constexpr Spelling kSpellings[] = {
    {SplitPattern::kGpt2,
     R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)re"},
    {SplitPattern::kCl100k,
     R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"},
    {SplitPattern::kQwen2,
     R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"},
    {SplitPattern::kO200k,
     R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"},
    {SplitPattern::kTekken,
     R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"},
    {SplitPattern::kTiktokenV1,
     R"re([^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)re"},
    {SplitPattern::kCl100kTiktoken,
     R"re('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)re"},
    // GPT-2's pattern does not treat line breaks specially, so it takes the last run whole anyway.
    {SplitPattern::kGpt2,
     R"re('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)re"},
};

}  // namespace

FirstPiece FirstPieceOf(SplitPattern pattern) {
  switch (pattern) {
    case SplitPattern::kGpt2:
      return FirstPieceBy<kGpt2Rules>;
    case SplitPattern::kCl100k:
      return FirstPieceBy<kCl100kRules>;
    case SplitPattern::kQwen2:
      return FirstPieceBy<kQwen2Rules>;
    case SplitPattern::kO200k:
      return FirstPieceBy<kO200kRules>;
    case SplitPattern::kTekken:
      return FirstPieceBy<kTekkenRules>;
    case SplitPattern::kTiktokenV1:
      return FirstPieceBy<kTiktokenV1Rules>;
    case SplitPattern::kCl100kTiktoken:
      return FirstPieceBy<kCl100kTiktokenRules>;
  }
  LOG(FATAL) << "no pattern " << static_cast<int>(pattern);
}

FirstPiece FirstPieceByDigits(bool individual) {
  return individual ? FirstDigitsOrOthers<true> : FirstDigitsOrOthers<false>;
}

absl::StatusOr<SplitPattern> FindSplitPattern(absl::string_view regex) {
  std::string known;
  for (const Spelling& spelling : kSpellings) {
    if (spelling.regex == regex) return spelling.pattern;
    absl::StrAppend(&known, "\n  ", spelling.regex);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no scanner for the pattern '", regex.substr(0, 1000), "'; there are", known));
}

}  // namespace megatron
