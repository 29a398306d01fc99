#include "megatron/train/config/page_part.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace megatron {

absl::StatusOr<std::string> WithPart(absl::string_view page, absl::string_view name,
                                     absl::string_view contents) {
  const std::string begin_line = absl::StrCat("<!-- ", name, ": begin");
  const std::string end_line = absl::StrCat("<!-- ", name, ": end -->");
  const size_t begin = page.find(begin_line);
  const size_t end = page.find(end_line);
  if (begin == absl::string_view::npos || end == absl::string_view::npos || end < begin) {
    return absl::InvalidArgumentError(
        absl::StrCat("the page has no lines ", begin_line, " ... --> and ", end_line));
  }
  const size_t first = page.find('\n', begin) + 1;
  return absl::StrCat(page.substr(0, first), contents, page.substr(end));
}

}  // namespace megatron
