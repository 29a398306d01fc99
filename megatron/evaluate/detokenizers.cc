#include "megatron/evaluate/detokenizers.h"

#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "megatron/evaluate/python_text.h"

namespace megatron {
namespace {

// Makes the replacements one after the other, each in the whole text.
template <size_t N>
void ReplaceEach(const std::pair<absl::string_view, absl::string_view> (&rules)[N],
                 std::string* text) {
  for (const auto& rule : rules) *text = absl::StrReplaceAll(*text, {rule});
}

// Removes white space at both ends of what stands between an opening mark and the next closing one.
std::string TrimBetween(absl::string_view text, char open, char close) {
  std::string trimmed;
  while (true) {
    const size_t begin = text.find(open);
    const size_t end = begin == text.npos ? begin : text.find(close, begin + 1);
    if (end == text.npos) break;
    trimmed += text.substr(0, begin + 1);
    trimmed += StripPythonSpace(text.substr(begin + 1, end - begin - 1));
    trimmed += close;
    text.remove_prefix(end + 1);
  }
  trimmed += text;
  return trimmed;
}

// The published rule writes its own pattern into the text where it finds /' 5/.
std::string ReplaceSlashedDigits(absl::string_view text) {
  std::string replaced;
  for (size_t i = 0; i < text.size();) {
    const bool found = absl::StartsWith(text.substr(i), "/' ") && i + 4 < text.size() &&
                       absl::ascii_isdigit(static_cast<unsigned char>(text[i + 3])) &&
                       text[i + 4] == '/';
    if (found) {
      replaced += "/'[0-9]/";
      i += 5;
    } else {
      replaced += text[i++];
    }
  }
  return replaced;
}

}  // namespace

std::string DetokenizeWikitext(absl::string_view given) {
  std::string text(given);
  ReplaceEach({{"s '", "s'"}}, &text);
  text = ReplaceSlashedDigits(text);
  ReplaceEach({{" @-@ ", "-"},
               {" @,@ ", ","},
               {" @.@ ", "."},
               {" : ", ": "},
               {" ; ", "; "},
               {" . ", ". "},
               {" ! ", "! "},
               {" ? ", "? "},
               {" , ", ", "}},
              &text);
  for (const auto& [open, close] :
       {std::pair('(', ')'), {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}}) {
    text = TrimBetween(text, open, close);
  }
  ReplaceEach({{"= = = =", "===="},
               {"= = =", "==="},
               {"= =", "=="},
               {" \u00b0 ", "\u00b0"},
               {" \n", "\n"},
               {"\n ", "\n"},
               {" N ", " 1 "},
               {" 's", "'s"}},
              &text);
  return text;
}

std::string DetokenizePtb(absl::string_view given) {
  std::string text(given);
  ReplaceEach({{" '", "'"},
               {" \n", "\n"},
               {"\n ", "\n"},
               {" n't", "n't"},
               {" N ", "1 "},
               {"$ 1", "$1"},
               {"# 1", "#1"}},
              &text);
  return text;
}

}  // namespace megatron
