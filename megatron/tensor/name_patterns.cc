#include "megatron/tensor/name_patterns.h"

#include <algorithm>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace megatron {
namespace {

// libstdc++ fills a cache of the global locale while it compiles an expression, and while it looks
// for the end of a word, without a lock; ranks that are threads do so at the same time.
ABSL_CONST_INIT absl::Mutex locale_mutex(absl::kConstInit);

bool IsFound(const std::regex& expression, const std::string& name) {
  const absl::MutexLock lock(&locale_mutex);
  return std::regex_search(name, expression);
}

}  // namespace

absl::StatusOr<NamePatterns> NamePatterns::Create(const std::vector<std::string>& expressions) {
  NamePatterns patterns;
  for (const std::string& text : expressions) {
    if (text.empty()) return absl::InvalidArgumentError("an expression is empty");
    try {
      const absl::MutexLock lock(&locale_mutex);
      patterns.patterns_.push_back({text, std::regex(text)});
    } catch (const std::regex_error& error) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\" is no regular expression: ", error.what()));
    }
  }
  return patterns;
}

bool NamePatterns::Match(const std::string& name) const {
  return std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const Pattern& pattern) { return IsFound(pattern.expression, name); });
}

std::vector<std::string> NamePatterns::Unused(const std::vector<std::string>& names) const {
  std::vector<std::string> unused;
  for (const Pattern& pattern : patterns_) {
    const bool used = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return IsFound(pattern.expression, name);
    });
    if (!used) unused.push_back(pattern.text);
  }
  return unused;
}

}  // namespace megatron
