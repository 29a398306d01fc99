#include "megatron/tensor/name_patterns.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace megatron {

absl::StatusOr<NamePatterns> NamePatterns::Create(const std::vector<std::string>& expressions) {
  NamePatterns patterns;
  for (const std::string& text : expressions) {
    if (text.empty()) return absl::InvalidArgumentError("an expression is empty");
    try {
      patterns.patterns_.push_back({text, std::regex(text)});
    } catch (const std::regex_error& error) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\" is no regular expression: ", error.what()));
    }
  }
  return patterns;
}

bool NamePatterns::Match(const std::string& name) const {
  return std::any_of(patterns_.begin(), patterns_.end(), [&](const Pattern& pattern) {
    return std::regex_search(name, pattern.expression);
  });
}

std::vector<std::string> NamePatterns::Unused(const std::vector<std::string>& names) const {
  std::vector<std::string> unused;
  for (const Pattern& pattern : patterns_) {
    const bool used = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return std::regex_search(name, pattern.expression);
    });
    if (!used) unused.push_back(pattern.text);
  }
  return unused;
}

}  // namespace megatron
