#include "megatron/data/text/json_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "megatron/data/text/json_string.h"

namespace megatron {
namespace {

absl::string_view TypeName(char first) {
  switch (first) {
    case '{':
      return "an object";
    case '[':
      return "a list";
    case '"':
      return "a string";
    case 't':
    case 'f':
      return "a boolean";
    case 'n':
      return "null";
    default:
      return "a number";
  }
}

// The state of the value of one key.
struct Found {
  bool present = false;
  bool usable = false;
  BadLineKind kind = BadLineKind::kWrongType;  // the reason if it is not usable
  std::string problem;
};

class LineParser {
 public:
  LineParser(absl::string_view line, const std::vector<std::string>& keys,
             std::vector<JsonText>* texts)
      : begin_(line.data()),
        p_(line.data()),
        end_(line.data() + line.size()),
        keys_(keys),
        texts_(*texts),
        found_(keys.size()) {
    texts_.resize(keys.size());
  }

  absl::Status Parse(BadLineKind* kind) {
    if (!ParseLine()) {
      *kind = kind_;
      return absl::InvalidArgumentError(error_);
    }
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (!found_[i].present) {
        *kind = BadLineKind::kMissingKey;
        return absl::InvalidArgumentError(absl::StrCat("there is no \"", keys_[i], "\""));
      }
      if (!found_[i].usable) {
        *kind = found_[i].kind;
        return absl::InvalidArgumentError(found_[i].problem);
      }
    }
    return absl::OkStatus();
  }

 private:
  bool Fail(BadLineKind kind, const char* at, absl::string_view problem) {
    kind_ = kind;
    error_ = absl::StrCat("column ", at - begin_ + 1, ": ", problem);
    return false;
  }
  bool Broken(absl::string_view problem) { return Fail(BadLineKind::kBrokenJson, p_, problem); }

  // Returns the next byte, or 0 at the end: no byte 0 is valid outside of strings.
  char Peek() const { return p_ == end_ ? '\0' : *p_; }

  void SkipSpace() {
    while (p_ != end_ && (*p_ == ' ' || *p_ == '\t' || *p_ == '\n' || *p_ == '\r')) ++p_;
  }

  bool ParseLine() {
    SkipSpace();
    const char first = Peek();
    if (!(first == '{' ? ParseTopObject() : SkipValue())) return false;
    SkipSpace();
    if (p_ != end_) return Broken("something follows the object");
    if (first != '{') {
      kind_ = BadLineKind::kWrongType;
      error_ = absl::StrCat("expected an object, this is ", TypeName(first));
      return false;
    }
    return true;
  }

  bool ParseTopObject() {
    ++p_;
    SkipSpace();
    if (Peek() == '}') {
      ++p_;
      return true;
    }
    while (true) {
      size_t key = 0;
      if (!ParseKey(&key)) return false;
      if (!(key < keys_.size() ? ParseWanted(key) : SkipValue())) return false;
      SkipSpace();
      const char next = Peek();
      if (next != ',' && next != '}') return Broken("expected ',' or '}'");
      ++p_;
      if (next == '}') return true;
      SkipSpace();
    }
  }

  // Parses a key and its colon. *index becomes the key's index in keys_, or keys_.size() if it is
  // not one of them.
  bool ParseKey(size_t* index) {
    JsonString raw;
    if (!SkipKey(&raw)) return false;
    absl::string_view name = raw.raw;
    if (raw.has_escapes) {
      scratch_.clear();
      // A key with a lone surrogate cannot equal any of our keys, which are UTF-8.
      if (!AppendUnescapedJson(raw.raw, &scratch_)) scratch_.assign(1, '\xff');
      name = scratch_;
    }
    *index = static_cast<size_t>(std::find(keys_.begin(), keys_.end(), name) - keys_.begin());
    return true;
  }

  bool SkipKey(JsonString* raw) {
    if (Peek() != '"') return Broken("expected a key in quotes");
    if (!ScanString(raw)) return false;
    SkipSpace();
    if (Peek() != ':') return Broken("expected ':' after a key");
    ++p_;
    return true;
  }

  bool ParseWanted(size_t key) {
    JsonText& out = texts_[key];
    Found& found = found_[key];
    out.text.clear();
    out.ends.clear();
    found.present = true;
    SkipSpace();
    const char* const value = p_;
    if (Peek() == '"') {
      JsonString raw;
      if (!ScanString(&raw)) return false;
      out.is_list = false;
      AddPiece(key, raw);
      return true;
    }
    if (!SkipValue()) return false;
    out.is_list = true;
    found.usable = *value == '[' && ReadList(key, value);
    if (!found.usable && (*value != '[' || found.problem.empty())) {
      found.kind = BadLineKind::kWrongType;
      found.problem =
          absl::StrCat("\"", keys_[key], "\" is ", TypeName(*value),
                       *value == '[' ? " with something that is no string" : ", not a string");
    }
    return true;
  }

  // Appends a text, or records why it is unusable.
  bool AddPiece(size_t key, const JsonString& raw) {
    JsonText& out = texts_[key];
    Found& found = found_[key];
    found.usable = true;
    if (!raw.has_escapes) {
      out.text.append(raw.raw.data(), raw.raw.size());
    } else if (!AppendUnescapedJson(raw.raw, &out.text)) {
      found.usable = false;
      found.kind = BadLineKind::kLoneSurrogate;
      found.problem = absl::StrCat("\"", keys_[key], "\" has half a surrogate pair");
    }
    out.ends.push_back(out.text.size());
    return found.usable;
  }

  // Reads the strings of the list that begins at `list` and is known to be well-formed and to end
  // at p_.
  bool ReadList(size_t key, const char* list) {
    found_[key].problem.clear();
    const char* const after = p_;
    p_ = list + 1;
    bool good = true;
    for (SkipSpace(); good && p_ != after && *p_ != ']'; SkipSpace()) {
      JsonString raw;
      good = *p_ == '"' && ScanString(&raw) && AddPiece(key, raw);
      SkipSpace();
      if (*p_ == ',') ++p_;
    }
    p_ = after;
    return good;
  }

  // Skips any value, however deeply nested.
  bool SkipValue() {
    nesting_.clear();
    do {
      SkipSpace();
      const char first = Peek();
      if (first == '{' || first == '[') {
        if (!Enter(first)) return false;
        if (just_entered_) continue;
      } else if (!SkipScalar(first)) {
        return false;
      }
      if (!LeaveFinished()) return false;
    } while (!nesting_.empty());
    return true;
  }

  // Handles an opening bracket: skips an empty list or object, or else moves to its first value.
  bool Enter(char bracket) {
    ++p_;
    SkipSpace();
    just_entered_ = Peek() != Closing(bracket);
    if (!just_entered_) {
      ++p_;
      return true;
    }
    nesting_.push_back(bracket);
    JsonString raw;
    return bracket == '[' || SkipKey(&raw);
  }

  // Closes, after a value, the lists and objects that end here, and moves to the next value, if
  // any.
  bool LeaveFinished() {
    while (!nesting_.empty()) {
      SkipSpace();
      const char bracket = nesting_.back();
      const char next = Peek();
      if (next == ',') {
        ++p_;
        SkipSpace();
        JsonString raw;
        return bracket == '[' || SkipKey(&raw);
      }
      if (next != Closing(bracket))
        return Broken(bracket == '[' ? "expected ',' or ']'" : "expected ',' or '}'");
      ++p_;
      nesting_.pop_back();
    }
    return true;
  }

  static char Closing(char bracket) { return bracket == '[' ? ']' : '}'; }

  bool SkipScalar(char first) {
    JsonString raw;
    if (first == '"') return ScanString(&raw);
    if (first == '-' || (first >= '0' && first <= '9')) return SkipNumber();
    for (const absl::string_view word : {"true", "false", "null", "NaN", "Infinity"}) {
      if (SkipWord(word)) return true;
    }
    return Broken(p_ == end_ ? "the line ends where a value should be" : "expected a value");
  }

  bool SkipWord(absl::string_view word) {
    if (absl::string_view(p_, static_cast<size_t>(end_ - p_)).substr(0, word.size()) != word)
      return false;
    p_ += word.size();
    return true;
  }

  bool SkipDigits() {
    const char* const from = p_;
    while (Peek() >= '0' && Peek() <= '9') ++p_;
    return p_ != from || Broken("expected a digit");
  }

  bool SkipNumber() {
    if (Peek() == '-') {
      ++p_;
      if (SkipWord("Infinity")) return true;
    }
    if (Peek() == '0') {
      ++p_;
    } else if (!SkipDigits()) {
      return false;
    }
    if (Peek() == '.') {
      ++p_;
      if (!SkipDigits()) return false;
    }
    if (Peek() == 'e' || Peek() == 'E') {
      ++p_;
      if (Peek() == '+' || Peek() == '-') ++p_;
      return SkipDigits();
    }
    return true;
  }

  // Scans a string and moves past its closing quote.
  bool ScanString(JsonString* string) {
    const char* at = p_;
    const absl::string_view problem = ScanJsonString(&at, end_, string);
    if (!problem.empty()) {
      return Fail(problem == kBadUtf8Problem ? BadLineKind::kBadUtf8 : BadLineKind::kBrokenJson, at,
                  problem);
    }
    p_ = at;
    return true;
  }

  const char* const begin_;
  const char* p_;
  const char* const end_;
  const std::vector<std::string>& keys_;
  std::vector<JsonText>& texts_;
  std::vector<Found> found_;
  std::string nesting_;  // the open brackets around p_
  bool just_entered_ = false;
  std::string scratch_;
  BadLineKind kind_ = BadLineKind::kBrokenJson;
  std::string error_;
};

}  // namespace

bool IsBlankJsonLine(absl::string_view line) {
  return line.find_first_not_of(" \t\n\r") == line.npos;
}

absl::Status ExtractJsonTexts(absl::string_view line, const std::vector<std::string>& keys,
                              std::vector<JsonText>* texts, BadLineKind* kind) {
  return LineParser(line, keys, texts).Parse(kind);
}

}  // namespace megatron
