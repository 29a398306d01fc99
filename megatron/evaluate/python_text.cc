#include "megatron/evaluate/python_text.h"

#include <cstddef>

#include "megatron/data/tokenizer/unicode.h"
#include "utf8proc.h"

namespace megatron {

// Python counts four separators of files and records, which have no property White_Space.
bool IsPythonSpace(char32_t c) {
  return (c >= 0x1c && c <= 0x1f) || CharClasses::Get().Is(c, kWhiteSpace);
}

absl::string_view StripTrailingPythonSpace(absl::string_view text) {
  size_t end = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    i += c.length;
    if (!IsPythonSpace(c.code_point)) end = i;
  }
  return text.substr(0, end);
}

absl::string_view StripPythonSpace(absl::string_view text) {
  size_t begin = 0;
  while (begin < text.size()) {
    const Utf8Char c = DecodeUtf8(text, begin);
    if (!IsPythonSpace(c.code_point)) break;
    begin += c.length;
  }
  return StripTrailingPythonSpace(text.substr(begin));
}

int64_t CountCharacters(absl::string_view text) {
  int64_t count = 0;
  for (size_t i = 0; i < text.size(); i += DecodeUtf8(text, i).length) ++count;
  return count;
}

int64_t CountWords(absl::string_view text) {
  int64_t words = 1;
  bool in_space = false;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text, i);
    const bool is_space = IsPythonSpace(c.code_point);
    if (is_space && !in_space) ++words;
    in_space = is_space;
    i += c.length;
  }
  return words;
}

std::string Capitalize(absl::string_view text) {
  if (text.empty()) return "";
  const Utf8Char first = DecodeUtf8(text, 0);
  std::string capitalized;
  if (IsInvalidByte(first)) {
    capitalized = text.substr(0, 1);
  } else {
    AppendUtf8(
        static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(first.code_point))),
        &capitalized);
  }
  return capitalized + ToLower(text.substr(first.length));
}

}  // namespace megatron
