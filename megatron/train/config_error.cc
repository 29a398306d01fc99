#include "megatron/train/config_error.h"

#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace megatron {

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
  for (const ConfigError& error : errors) absl::StrAppend(&text, "\n  ", ToString(error));
  return absl::InvalidArgumentError(text);
}

}  // namespace megatron
