#include "megatron/train/console/wrap_text.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace megatron {

std::string WrapText(absl::string_view text, absl::string_view indent, size_t columns) {
  std::vector<std::string> pieces;
  bool after_operator = false;
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    const bool is_operator = word.size() == 1 && absl::StrContains("+-*/", word);
    if (!pieces.empty() && !pieces.back().empty() && (is_operator || after_operator)) {
      absl::StrAppend(&pieces.back(), " ", word);
    } else {
      pieces.emplace_back(word);
    }
    after_operator = is_operator;
  }
  std::string out = pieces.front();
  size_t column = out.size();
  for (size_t i = 1; i < pieces.size(); ++i) {
    const bool fits = column + 1 + pieces[i].size() <= columns;
    absl::StrAppend(&out, fits ? " " : "\n", fits ? "" : indent, pieces[i]);
    column = (fits ? column + 1 : indent.size()) + pieces[i].size();
  }
  return out;
}

}  // namespace megatron
