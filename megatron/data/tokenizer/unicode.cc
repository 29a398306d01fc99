#include "megatron/data/tokenizer/unicode.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "glog/logging.h"
#include "utf8proc.h"

namespace megatron {
namespace {

constexpr char32_t kLastCodePoint = 0x10ffff;

// Hangul syllables are computed and not stored in tables.
constexpr char32_t kLeadBase = 0x1100, kVowelBase = 0x1161, kTailBase = 0x11a7;
constexpr char32_t kSyllableBase = 0xac00;
constexpr char32_t kLeads = 19, kVowels = 21, kTails = 28;

// A code point during normalization.
struct Symbol {
  char32_t code_point;
  uint16_t combining_class;
  size_t origin;
};

bool In(char32_t c, char32_t first, char32_t last) { return first <= c && c <= last; }

bool IsWhiteSpace(char32_t c) {
  return In(c, 9, 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         In(c, 0x2000, 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool IsCjk(char32_t c) {
  return In(c, 0x4e00, 0x9fff) || In(c, 0x3400, 0x4dbf) || In(c, 0x20000, 0x2a6df) ||
         In(c, 0x2a700, 0x2b73f) || In(c, 0x2b740, 0x2b81f) || In(c, 0x2b820, 0x2ceaf) ||
         In(c, 0xf900, 0xfaff) || In(c, 0x2f800, 0x2fa1f);
}

uint32_t ClassOfCategory(utf8proc_category_t category) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
      return kUpper;
    case UTF8PROC_CATEGORY_LL:
      return kLower;
    case UTF8PROC_CATEGORY_LT:
      return kTitle;
    case UTF8PROC_CATEGORY_LM:
      return kModifier;
    case UTF8PROC_CATEGORY_LO:
      return kOtherLetter;
    case UTF8PROC_CATEGORY_MN:
      return kNonspacing;
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kOtherMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return kPunctuation;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return kSymbol;
    case UTF8PROC_CATEGORY_ZS:
      return kSpaceSeparator;
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return 0;
    case UTF8PROC_CATEGORY_CC:
      return kControl;
    case UTF8PROC_CATEGORY_CF:
      return kFormat;
    case UTF8PROC_CATEGORY_CO:
      return kPrivateUse;
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CS:
      return kUnassigned;
  }
  return kUnassigned;
}

// Returns whether a character is cased: upper, lower and title case, and Unicode's Other_Lowercase
// and Other_Uppercase.
bool IsCased(utf8proc_category_t category, char32_t c) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return true;
    default:
      return c == 0xaa || c == 0xba || In(c, 0x2160, 0x217f) || In(c, 0x24b6, 0x24e9) ||
             In(c, 0x1f130, 0x1f149) || In(c, 0x1f150, 0x1f169) || In(c, 0x1f170, 0x1f189);
  }
}

// Returns whether a character is case-ignorable: some categories, and the punctuation that may
// occur within a word.
bool IsCaseIgnorable(utf8proc_category_t category, char32_t c) {
  constexpr char32_t kWithinWords[] = {'\'',   '.',    ':',    0xb7,   0x387,  0x55f,
                                       0x5f4,  0x2018, 0x2019, 0x2024, 0x2027, 0xfe13,
                                       0xfe52, 0xfe55, 0xff07, 0xff0e, 0xff1a};
  switch (category) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return std::find(std::begin(kWithinWords), std::end(kWithinWords), c) !=
             std::end(kWithinWords);
  }
}

// Returns the composition of two adjacent characters, or 0.
char32_t Compose(char32_t first, char32_t second) {
  if (In(first, kLeadBase, kLeadBase + kLeads - 1) &&
      In(second, kVowelBase, kVowelBase + kVowels - 1)) {
    return kSyllableBase + ((first - kLeadBase) * kVowels + second - kVowelBase) * kTails;
  }
  if (In(first, kSyllableBase, kSyllableBase + kLeads * kVowels * kTails - 1)) {
    const bool open = (first - kSyllableBase) % kTails == 0;
    return open && In(second, kTailBase + 1, kTailBase + kTails - 1) ? first + second - kTailBase
                                                                     : 0;
  }
  utf8proc_int32_t pair[2] = {static_cast<utf8proc_int32_t>(first),
                              static_cast<utf8proc_int32_t>(second)};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  return utf8proc_normalize_utf32(pair, 2, options) == 1 ? static_cast<char32_t>(pair[0]) : 0;
}

bool ComposesWithPrevious(char32_t c) {
  const uint16_t index = utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->comb_index;
  return (index != UINT16_MAX && index >= 0x8000) || In(c, kVowelBase, kVowelBase + kVowels - 1) ||
         In(c, kTailBase + 1, kTailBase + kTails - 1);
}

uint16_t CombiningClass(char32_t c) {
  return static_cast<uint16_t>(
      utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class);
}

void AppendDecomposed(char32_t c, bool compatible, size_t origin, std::vector<Symbol>* symbols) {
  constexpr int kMost = 32;  // U+FDFA has 18
  utf8proc_int32_t parts[kMost];
  int bound_class = 0;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  const utf8proc_ssize_t n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, kMost,
                                                     options, &bound_class);
  CHECK(n >= 0 && n <= kMost) << "U+" << std::hex << static_cast<uint32_t>(c);
  for (int i = 0; i < n; ++i) {
    const char32_t part = static_cast<char32_t>(parts[i]);
    symbols->push_back({part, CombiningClass(part), origin});
  }
}

// Puts marks into canonical order: between two starters they are sorted by class, stably. The
// origin of reordered marks becomes that of the first of them.
void SortMarks(std::vector<Symbol>* symbols) {
  for (auto begin = symbols->begin(); begin != symbols->end();) {
    if (begin->combining_class == 0) {
      ++begin;
      continue;
    }
    const auto end =
        std::find_if(begin, symbols->end(), [](const Symbol& s) { return s.combining_class == 0; });
    std::stable_sort(begin, end, [](const Symbol& a, const Symbol& b) {
      return a.combining_class < b.combining_class;
    });
    for (auto mark = end - 1; mark != begin; --mark) {
      (mark - 1)->origin = std::min((mark - 1)->origin, mark->origin);
    }
    begin = end;
  }
}

// Composes each mark or jamo with the last starter, unless a character of its class or above is
// between them.
void ComposeAll(std::vector<Symbol>* symbols) {
  constexpr size_t kNone = SIZE_MAX;
  size_t starter = kNone, size = 0;
  int blocking = -1;  // greatest class since the starter
  for (const Symbol symbol : std::vector<Symbol>(*symbols)) {
    if (starter != kNone && int{symbol.combining_class} > blocking) {
      const char32_t composed = Compose((*symbols)[starter].code_point, symbol.code_point);
      if (composed != 0) {
        (*symbols)[starter].code_point = composed;
        continue;
      }
    }
    if (symbol.combining_class == 0) {
      starter = size;
      blocking = -1;
    } else {
      blocking = symbol.combining_class;
    }
    (*symbols)[size++] = symbol;
  }
  symbols->resize(size);
}

bool IsCompatible(NormalizationForm form) {
  return form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
}

bool IsComposed(NormalizationForm form) {
  return form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
}

uint32_t StableClass(NormalizationForm form) {
  switch (form) {
    case NormalizationForm::kNfc:
      return kStableNfc;
    case NormalizationForm::kNfd:
      return kStableNfd;
    case NormalizationForm::kNfkc:
      return kStableNfkc;
    case NormalizationForm::kNfkd:
      return kStableNfkd;
  }
  return 0;
}

void NormalizeSymbols(NormalizationForm form, std::vector<Symbol>* symbols) {
  SortMarks(symbols);
  if (IsComposed(form)) ComposeAll(symbols);
}

// Returns whether no text before `c` takes part in normalizing `c` and what follows, and `c` alone
// is normalized.
bool IsStable(NormalizationForm form, char32_t c, std::vector<Symbol>* scratch) {
  if (CombiningClass(c) != 0) return false;
  if (IsComposed(form) && ComposesWithPrevious(c)) return false;
  scratch->clear();
  AppendDecomposed(c, IsCompatible(form), 0, scratch);
  NormalizeSymbols(form, scratch);
  return scratch->size() == 1 && scratch->front().code_point == c;
}

uint32_t StableClasses(char32_t c, std::vector<Symbol>* scratch) {
  constexpr uint32_t kComposed = kStableNfc | kStableNfkc, kDecomposed = kStableNfd | kStableNfkd;
  // This covers nearly all characters; the others are normalized to find out.
  const utf8proc_property_t& property = *utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  if (In(c, kSyllableBase, kSyllableBase + kLeads * kVowels * kTails - 1)) return kComposed;
  if (property.decomp_seqindex == UINT16_MAX && property.combining_class == 0) {
    return kDecomposed | (ComposesWithPrevious(c) ? 0 : kComposed);
  }
  uint32_t classes = 0;
  for (const NormalizationForm form : {NormalizationForm::kNfc, NormalizationForm::kNfd,
                                       NormalizationForm::kNfkc, NormalizationForm::kNfkd}) {
    if (IsStable(form, c, scratch)) classes |= StableClass(form);
  }
  return classes;
}

uint32_t ClassesOf(char32_t c, std::vector<Symbol>* scratch) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  uint32_t classes = ClassOfCategory(category);
  if (IsCaseIgnorable(category, c)) {
    classes |= kCaseIgnorable;
  } else if (IsCased(category, c)) {
    classes |= kCased;
  }
  if (IsWhiteSpace(c)) classes |= kWhiteSpace;
  if (IsCjk(c)) classes |= kCjk;
  return classes | StableClasses(c, scratch);
}

// Appends characters, and the origins of their bytes if wanted.
class Output {
 public:
  Output(size_t size, std::vector<size_t>* origins) : origins_(origins) {
    text_.reserve(size);
    if (origins_ == nullptr) return;
    origins_->clear();
    origins_->reserve(size + 1);
  }

  void Append(char32_t c, size_t origin) {
    AppendUtf8(c, &text_);
    if (origins_ != nullptr) origins_->resize(text_.size(), origin);
  }

  std::string Finish(size_t source_size) {
    if (origins_ != nullptr) origins_->push_back(source_size);
    return std::move(text_);
  }

 private:
  std::string text_;
  std::vector<size_t>* origins_;
};

}  // namespace

Utf8Char DecodeLongUtf8(const char* p, const char* end) {
  const Utf8Char invalid = {kReplacementCharacter, 1};
  const auto* bytes = reinterpret_cast<const unsigned char*>(p);
  const unsigned char first = bytes[0];
  const uint32_t length = first < 0xc2 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length == 1 || first > 0xf4 || static_cast<size_t>(end - p) < length) return invalid;
  char32_t c = first & (0xffu >> (length + 1));
  for (uint32_t i = 1; i < length; ++i) {
    if ((bytes[i] & 0xc0) != 0x80) return invalid;
    c = c << 6 | (bytes[i] & 0x3f);
  }
  const bool overlong = (length == 3 && c < 0x800) || (length == 4 && c < 0x10000);
  if (overlong || In(c, 0xd800, 0xdfff) || c > kLastCodePoint) return invalid;
  return {c, length};
}

void AppendUtf8(char32_t c, std::string* out) {
  const auto trail = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3f)); };
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xc0 | c >> 6));
    out->push_back(trail(0));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xe0 | c >> 12));
    out->push_back(trail(6));
    out->push_back(trail(0));
  } else {
    DCHECK_LE(static_cast<uint32_t>(c), static_cast<uint32_t>(kLastCodePoint));
    out->push_back(static_cast<char>(0xf0 | c >> 18));
    out->push_back(trail(12));
    out->push_back(trail(6));
    out->push_back(trail(0));
  }
}

bool IsValidUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    if (IsInvalidByte(c)) return false;
    i += c.length;
  }
  return true;
}

std::string ReplaceInvalidUtf8(absl::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    AppendUtf8(c.code_point, &valid);
    i += c.length;
  }
  return valid;
}

CharClasses::CharClasses() {
  std::map<std::vector<uint32_t>, uint16_t> page_numbers;
  std::vector<Symbol> scratch;
  std::vector<uint32_t> page(256);
  for (char32_t first = 0; first <= kLastCodePoint; first += 256) {
    for (char32_t i = 0; i < 256; ++i) page[i] = ClassesOf(first + i, &scratch);
    const auto found = page_numbers.emplace(page, static_cast<uint16_t>(pages_.size()));
    if (found.second) {
      pages_.emplace_back();
      std::copy(page.begin(), page.end(), pages_.back().classes);
    }
    page_of_.push_back(found.first->second);
  }
}

const CharClasses& CharClasses::Get() {
  static const CharClasses* const classes = new CharClasses();
  return *classes;
}

std::string ToLower(absl::string_view text, std::vector<size_t>* origins) {
  Output out(text.size(), origins);
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    if (c.code_point == 0x130) {  // the only character whose lower case is two code points
      out.Append('i', i);
      out.Append(0x307, i);
    } else if (c.code_point < 0x80) {
      out.Append(In(c.code_point, 'A', 'Z') ? c.code_point + 32 : c.code_point, i);
    } else {
      const auto lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code_point));
      out.Append(static_cast<char32_t>(lower), i);
    }
    i += c.length;
  }
  return out.Finish(text.size());
}

std::string NormalizeUnicode(NormalizationForm form, absl::string_view text,
                             std::vector<size_t>* origins) {
  const CharClasses& classes = CharClasses::Get();
  const uint32_t stable = StableClass(form);
  Output out(text.size(), origins);
  std::vector<Symbol> symbols;
  bool pending = false;  // `symbols` holds a stable character alone, which needs no work
  const auto flush = [&] {
    if (!pending) NormalizeSymbols(form, &symbols);
    for (const Symbol& s : symbols) out.Append(s.code_point, s.origin);
    symbols.clear();
  };
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    if (classes.Is(c.code_point, stable)) {
      flush();
      symbols.push_back({c.code_point, 0, i});
      pending = true;
    } else {
      // A composed character is decomposed before it is composed again.
      if (pending && IsComposed(form)) {
        const Symbol first = symbols.front();
        symbols.clear();
        AppendDecomposed(first.code_point, IsCompatible(form), first.origin, &symbols);
      }
      pending = false;
      AppendDecomposed(c.code_point, IsCompatible(form), i, &symbols);
    }
    i += c.length;
  }
  flush();
  return out.Finish(text.size());
}

}  // namespace megatron
