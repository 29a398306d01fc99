#include "tools/common/at_least_one.h"

#include "absl/strings/str_cat.h"

namespace megatron {

absl::Status CheckAtLeastOne(const std::vector<std::pair<absl::string_view, int64_t>>& flags) {
  for (const auto& [name, value] : flags) {
    if (value < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " is ", value, "; it must be at least 1"));
    }
  }
  return absl::OkStatus();
}

}  // namespace megatron
