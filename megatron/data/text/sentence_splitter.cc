#include "megatron/data/text/sentence_splitter.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "megatron/data/text/utf8_scan.h"
#include "utf8proc.h"

namespace megatron {
namespace {

// Abbreviations that a name, a number or an explanation follows.
constexpr absl::string_view kNeverLast[] = {
    "Adm", "Arq",  "Asst",   "Atty", "Bros", "Brig",   "Capt", "Cdr", "Cmdr", "Col",  "Cpl",
    "Dr",  "Dra",  "Drs",    "Ens",  "Ft",   "Gen",    "Gov",  "Hon", "Hr",   "Insp", "Lieut",
    "Lt",  "Maj",  "Messrs", "Mlle", "Mme",  "Mmes",   "Mr",   "Mrs", "Ms",   "Msgr", "Mt",
    "Ofc", "Pfc",  "Pres",   "Prof", "Pvt",  "Rep",    "Reps", "Rev", "Sen",  "Sens", "Sgt",
    "Sra", "Srta", "St",     "Ste",  "Supt", "approx", "bzw",  "ca",  "cf",   "e.g",  "eg",
    "esp", "i.e",  "ie",     "resp", "u.a",  "v",      "viz",  "vgl", "vs",   "z.B"};

// Abbreviations before a number; if no number follows, they are words that may end a sentence.
constexpr absl::string_view kBeforeNumber[] = {
    "Abb", "Abs", "Art", "Bd",  "Ch",  "Eq",   "Eqs", "Fig", "Figs", "No",
    "Nos", "Nr",  "Op",  "Sec", "Vol", "Vols", "art", "ch",  "eq",   "fig",
    "no",  "nos", "nr",  "p",   "par", "pp",   "sec", "vol", "vols"};

// Abbreviations that occur in the middle of a sentence as well as at its end.
constexpr absl::string_view kMaybeLast[] = {
    "Apr",  "Aug", "Ave", "Blvd", "Co",    "Corp", "Dec",  "Dept", "Est", "Feb", "Fri",  "Inc",
    "Jan",  "Jr",  "Jul", "Jun",  "Ltd",   "Mar",  "Mon",  "Nov",  "Oct", "Rd",  "Sat",  "Sep",
    "Sept", "Sr",  "Sun", "Thu",  "Thurs", "Tue",  "Tues", "Univ", "Wed", "al",  "dept", "ed",
    "eds",  "est", "etc", "ft",   "hrs",   "lb",   "lbs",  "min",  "oz",  "sq",  "usw"};

// Words that begin sentences far more often than names.
constexpr absl::string_view kStarters[] = {
    "A",       "After",  "All",   "Also",  "Although", "An",    "And",   "As",     "At",
    "Because", "Before", "Both",  "But",   "By",       "Der",   "Die",   "Das",    "Each",
    "Even",    "For",    "From",  "He",    "Her",      "Here",  "His",   "How",    "However",
    "I",       "If",     "In",    "It",    "Its",      "Just",  "Let",   "Many",   "Meanwhile",
    "Most",    "My",     "No",    "Not",   "Now",      "On",    "Once",  "One",    "Or",
    "Our",     "She",    "Since", "So",    "Some",     "Still", "Such",  "That",   "The",
    "Their",   "Then",   "There", "These", "They",     "This",  "Those", "Though", "Thus",
    "To",      "Under",  "Until", "We",    "What",     "When",  "Where", "Which",  "While",
    "Who",     "Why",    "With",  "Yes",   "Yet",      "You",   "Your"};

// Longer words are no abbreviations, so looking back costs little.
constexpr size_t kLongestWord = 24;
// The longest quotation that is followed to its end: a bracket that is never closed is treated as
// an ordinary letter.
constexpr size_t kLongestQuotation = 600;

template <size_t n>
bool IsIn(const absl::string_view (&list)[n], absl::string_view word) {
  return std::find(std::begin(list), std::end(list), word) != std::end(list);
}

struct Character {
  int32_t code = -1;  // -1: no character, or the end
  size_t size = 1;
};

Character DecodeAt(absl::string_view text, size_t position) {
  if (position >= text.size()) return {};
  const char* const p = text.data() + position;
  Character c;
  const size_t size = Utf8CharacterLength(p, text.data() + text.size());
  if (size == 0) return c;
  c.size = size;
  c.code = static_cast<unsigned char>(p[0]);
  if (size > 1) c.code &= 0x7f >> size;
  for (size_t i = 1; i < size; ++i) c.code = (c.code << 6) | (p[i] & 0x3f);
  return c;
}

bool IsSpace(int32_t c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || c == 0x85 || c == 0xa0 || c == 0x3000 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f;
}

bool IsTerminator(int32_t c) { return c == '.' || c == '!' || c == '?' || c == 0x2026; }

// Returns whether `c` ends a sentence without white space after it.
bool IsFullStop(int32_t c) {
  switch (c) {
    case 0x3002:  // ideographic, and its narrow form
    case 0xff61:
    case 0xff01:  // wide ! ? .
    case 0xff1f:
    case 0xff0e:
    case 0x0964:  // danda and double danda
    case 0x0965:
    case 0x061f:  // Arabic question mark, Urdu full stop
    case 0x06d4:
    case 0x0589:  // Armenian
    case 0x1362:  // Ethiopic
    case 0x104b:  // Burmese
    case 0x17d4:  // Khmer
      return true;
    default:
      return false;
  }
}

bool IsCloser(int32_t c) {
  switch (c) {
    case '"':
    case '\'':
    case ')':
    case ']':
    case '}':
    case 0xbb:    // »
    case 0x2019:  // ’ ”
    case 0x201d:
    case 0x203a:  // ›
    case 0x3009:  // 〉》」』】〕
    case 0x300b:
    case 0x300d:
    case 0x300f:
    case 0x3011:
    case 0x3015:
    case 0xff09:  // wide )
    case 0xff63:  // narrow 」
      return true;
    default:
      return false;
  }
}

// Returns whether `c` may precede the first letter of a sentence.
bool IsOpener(int32_t c) {
  switch (c) {
    case '"':
    case '\'':
    case '(':
    case '[':
    case '{':
    case '*':
    case '_':
    case 0xab:    // «
    case 0x2018:  // ‘ “ „
    case 0x201c:
    case 0x201e:
    case 0x2039:  // ‹
    case 0xbf:    // ¿ ¡
    case 0xa1:
      return true;
    default:
      return false;
  }
}

// Returns the closing bracket of an East Asian opening bracket; 0 for any other character.
int32_t QuotationEnd(int32_t c) {
  switch (c) {
    case 0x3008:
    case 0x300a:
    case 0x300c:
    case 0x300e:
    case 0x3010:
    case 0x3014:
    case 0xff62:
    case 0xff08:
      return c + 1;
    default:
      return 0;
  }
}

// Returns whether `c` continues the sentence after a quotation: と, は and so on, and commas.
bool ContinuesQuotation(int32_t c) {
  return (c >= 0x3041 && c <= 0x3096) || c == 0x3001 || c == 0xff0c || c == ',';
}

bool IsLowerCase(int32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z';
  return utf8proc_category(c) == UTF8PROC_CATEGORY_LL;
}

bool IsUpperCase(int32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z';
  return utf8proc_category(c) == UTF8PROC_CATEGORY_LU;
}

// Returns whether a word consists of one or two letters between periods: U.S, a.m, Ph.D.
bool IsAcronym(absl::string_view word) {
  if (word.find('.') == word.npos) return false;
  const std::vector<absl::string_view> parts = absl::StrSplit(word, '.');
  return std::all_of(parts.begin(), parts.end(), [](absl::string_view part) {
    return !part.empty() && part.size() <= 2 && std::all_of(part.begin(), part.end(), [](char c) {
      return absl::ascii_isalpha(static_cast<unsigned char>(c));
    });
  });
}

// Returns whether a byte may affect the result; all others are skipped.
bool MayMatter(char byte) {
  const unsigned char c = static_cast<unsigned char>(byte);
  return c >= 0x80 || c == '.' || c == '!' || c == '?' || c == '\n';
}

class Splitter {
 public:
  Splitter(absl::string_view text, const SentenceSplitterOptions& options,
           std::vector<absl::string_view>* sentences)
      : text_(text), options_(options), sentences_(*sentences) {}

  void Run() {
    begin_ = SkipSpace(0);
    size_t position = begin_;
    while (position < text_.size()) {
      if (!MayMatter(text_[position])) {
        ++position;
        continue;
      }
      const Character c = DecodeAt(text_, position);
      size_t end = 0;
      resume_ = position + c.size;
      if (c.code == '\n') {
        end = HasBlankLine(position) ? position : 0;
      } else if (IsTerminator(c.code)) {
        end = EndAfterTerminator(position);
      } else if (IsFullStop(c.code)) {
        end = EndAfterFullStop(position);
      } else if (QuotationEnd(c.code) != 0) {
        end = EndAfterQuotation(position, c);
      }
      position = end != 0 ? Emit(end) : resume_;
    }
    if (begin_ < text_.size()) Emit(text_.size());
  }

 private:
  size_t SkipSpace(size_t position) const {
    for (Character c = DecodeAt(text_, position); IsSpace(c.code); c = DecodeAt(text_, position))
      position += c.size;
    return position;
  }

  // Ends a sentence; returns the beginning of the next one.
  size_t Emit(size_t end) {
    const size_t next = SkipSpace(end);
    end = options_.keep_newlines ? next : EndOfText(end);
    sentences_.push_back(text_.substr(begin_, end - begin_));
    begin_ = next;
    return next;
  }

  // Returns `end` without the white space before it.
  size_t EndOfText(size_t end) const {
    while (true) {
      size_t last = end - 1;
      while ((text_[last] & 0xc0) == 0x80 && last > begin_) --last;
      if (!IsSpace(DecodeAt(text_, last).code)) return end;
      end = last;
    }
  }

  bool HasBlankLine(size_t newline) const {
    const size_t next = text_.find_first_not_of(" \t\r", newline + 1);
    return next == text_.npos || text_[next] == '\n';
  }

  template <typename Predicate>
  size_t SkipWhile(size_t position, Predicate predicate) const {
    for (Character c = DecodeAt(text_, position); c.code >= 0 && predicate(c.code);
         c = DecodeAt(text_, position)) {
      position += c.size;
    }
    return position;
  }

  // EndAfterTerminator, EndAfterFullStop and EndAfterQuotation return the end of the sentence that
  // the character at `position` ends, or 0 if it ends none.
  size_t EndAfterTerminator(size_t position) {
    const size_t run_end = SkipWhile(position, IsTerminator);
    resume_ = run_end;
    const size_t end = SkipWhile(run_end, IsCloser);
    const Character following = DecodeAt(text_, end);
    if (end < text_.size() && !IsSpace(following.code)) return 0;
    const size_t next = SkipWhile(SkipSpace(end), IsOpener);
    if (next == text_.size()) return end;
    if (IsLowerCase(DecodeAt(text_, next).code)) return 0;
    const bool lone_period = text_.substr(position, run_end - position) == ".";
    return lone_period && !PeriodEnds(position, next) ? 0 : end;
  }

  // Returns whether the period ends a sentence if the next word is at `next` and does not begin
  // with a small letter.
  bool PeriodEnds(size_t period, size_t next) const {
    const absl::string_view word = WordBefore(period);
    const bool first = word.data() == text_.data() + begin_;
    const auto is_digit = [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); };
    if (word.empty()) return true;
    if (std::all_of(word.begin(), word.end(), is_digit)) return !first;
    if (IsIn(kNeverLast, word)) return false;
    if (std::find(options_.abbreviations.begin(), options_.abbreviations.end(), word) !=
        options_.abbreviations.end()) {
      return false;
    }
    if (IsIn(kBeforeNumber, word)) return !is_digit(text_[next]);
    const Character initial = DecodeAt(word, 0);
    if (initial.size == word.size() && first) return false;
    const bool lone_letter = initial.size == word.size() && IsUpperCase(initial.code);
    const bool maybe = lone_letter || IsAcronym(word) || IsIn(kMaybeLast, word);
    return !maybe || IsIn(kStarters, WordAt(next));
  }

  // Returns the word before `end`, back to white space or an opening quote or bracket; empty if it
  // is too long to matter.
  absl::string_view WordBefore(size_t end) const {
    size_t begin = end;
    const size_t limit = std::max(begin_, end - std::min(end, kLongestWord));
    while (begin > limit && !IsWordBoundary(text_[begin - 1])) --begin;
    return text_.substr(begin, end - begin);
  }

  static bool IsWordBoundary(char c) {
    return absl::ascii_isspace(static_cast<unsigned char>(c)) ||
           absl::string_view("\"'([{*_-/").find(c) != absl::string_view::npos;
  }

  absl::string_view WordAt(size_t position) const {
    size_t end = position;
    while (end < text_.size() && end - position < kLongestWord &&
           absl::ascii_isalpha(static_cast<unsigned char>(text_[end]))) {
      ++end;
    }
    return text_.substr(position, end - position);
  }

  size_t EndAfterFullStop(size_t position) {
    const size_t stops_end =
        SkipWhile(position, [](int32_t c) { return IsFullStop(c) || IsTerminator(c); });
    resume_ = stops_end;
    const size_t end = SkipWhile(stops_end, IsCloser);
    const bool in_quotation = end != stops_end;
    return in_quotation && ContinuesQuotation(DecodeAt(text_, end).code) ? 0 : end;
  }

  // Skips the quotation that begins with `opener` at `position`, unless it has no end.
  size_t EndAfterQuotation(size_t position, const Character& opener) {
    const int32_t closer = QuotationEnd(opener.code);
    const size_t limit = std::min(text_.size(), position + kLongestQuotation);
    int depth = 0;
    bool after_stop = false;
    for (size_t at = position; at < limit;) {
      const Character c = DecodeAt(text_, at);
      if (c.code == '\n') return 0;
      at += c.size;
      depth += c.code == opener.code ? 1 : c.code == closer ? -1 : 0;
      if (depth == 0) {
        resume_ = at;
        const size_t end = SkipWhile(at, IsCloser);
        return after_stop && !ContinuesQuotation(DecodeAt(text_, end).code) ? end : 0;
      }
      // A quotation inside of this one may end with the stop.
      after_stop = IsFullStop(c.code) || (after_stop && IsCloser(c.code));
    }
    return 0;
  }

  const absl::string_view text_;
  const SentenceSplitterOptions& options_;
  std::vector<absl::string_view>& sentences_;
  size_t begin_ = 0;  // beginning of the current sentence
  // Next position to examine if no sentence ends here, so that no run is scanned twice.
  size_t resume_ = 0;
};

}  // namespace

void SplitSentences(absl::string_view text, const SentenceSplitterOptions& options,
                    std::vector<absl::string_view>* sentences) {
  sentences->clear();
  Splitter(text, options, sentences).Run();
}

}  // namespace megatron
