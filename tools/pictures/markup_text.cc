#include "tools/pictures/markup_text.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "megatron/data/text/utf8_scan.h"

namespace megatron {
namespace {

constexpr absl::string_view kReplacement = "\xef\xbf\xbd";

absl::string_view EscapeOf(char character) {
  switch (character) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    case '\n':
      return "\n";
    default:
      return static_cast<unsigned char>(character) < 0x20 || character == 0x7f
                 ? kReplacement
                 : absl::string_view();
  }
}

}  // namespace

std::string MarkupText(absl::string_view text) {
  std::string markup;
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    const size_t length = Utf8CharacterLength(p, end);
    const absl::string_view character(p, std::max<size_t>(length, 1));
    const absl::string_view escape = length == 0 ? kReplacement : EscapeOf(*p);
    absl::StrAppend(&markup, escape.empty() ? character : escape);
    p += character.size();
  }
  return markup;
}

}  // namespace megatron
