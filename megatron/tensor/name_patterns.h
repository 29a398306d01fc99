// Regular expressions that choose parameters by their names.
#ifndef MEGATRON_TENSOR_NAME_PATTERNS_H_
#define MEGATRON_TENSOR_NAME_PATTERNS_H_

#include <regex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace megatron {

class NamePatterns {
 public:
  // The expressions are ECMAScript's. Returns kInvalidArgument, naming the expression, if one is
  // wrong or empty.
  static absl::StatusOr<NamePatterns> Create(const std::vector<std::string>& expressions);

  // Returns whether one of the expressions is found in the name, at any place of it.
  bool Match(const std::string& name) const;

  // Returns the expressions that are found in none of the names.
  std::vector<std::string> Unused(const std::vector<std::string>& names) const;

 private:
  struct Pattern {
    std::string text;
    std::regex expression;
  };
  std::vector<Pattern> patterns_;
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_NAME_PATTERNS_H_
