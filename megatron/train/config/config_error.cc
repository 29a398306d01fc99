#include "megatron/train/config/config_error.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace megatron {
namespace {

// With more errors, the first ones, from which the others often follow, would scroll off the
// screen.
constexpr size_t kMostShownErrors = 50;

}  // namespace

bool operator==(const ConfigError& a, const ConfigError& b) {
  return std::tie(a.where, a.field, a.value, a.message) ==
         std::tie(b.where, b.field, b.value, b.message);
}

std::string ToString(const ConfigError& error) {
  std::string text;
  if (!error.where.empty()) absl::StrAppend(&text, error.where, ": ");
  if (!error.field.empty()) {
    absl::StrAppend(&text, error.field, error.value.empty() ? "" : " = ", error.value, ": ");
  }
  absl::StrAppend(&text, error.message);
  return text;
}

absl::Status ToStatus(const std::vector<ConfigError>& errors) {
  if (errors.empty()) return absl::OkStatus();
  std::string text = errors.size() == 1
                         ? "the configuration has an error:"
                         : absl::StrCat("the configuration has ", errors.size(), " errors:");
  const size_t shown = std::min(errors.size(), kMostShownErrors);
  for (size_t i = 0; i < shown; ++i) absl::StrAppend(&text, "\n  ", ToString(errors[i]));
  if (shown < errors.size()) absl::StrAppend(&text, "\n  and ", errors.size() - shown, " more");
  return absl::InvalidArgumentError(text);
}

}  // namespace megatron
