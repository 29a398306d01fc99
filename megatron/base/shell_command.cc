#include "megatron/base/shell_command.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace megatron {
namespace {

// '=' is plain only behind a name that begins with a dash: `a=b` in front of a command sets a
// variable.
bool IsPlain(absl::string_view word) {
  constexpr absl::string_view kPlain = "-_./:,@%+=";
  for (const char c : word) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && kPlain.find(c) == kPlain.npos)
      return false;
  }
  return !word.empty() && (word.front() == '-' || word.find('=') == word.npos);
}

}  // namespace

std::string ShellCommand(const std::vector<std::string>& words) {
  return absl::StrJoin(words, " ", [](std::string* out, const std::string& word) {
    if (IsPlain(word)) {
      absl::StrAppend(out, word);
    } else {
      absl::StrAppend(out, "'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
    }
  });
}

}  // namespace megatron
