// The value of what stands between [[ and ]], or behind the command `test`.

#ifndef MEGATRON_TOOLS_FROM_MEGATRON_SHELL_CONDITION_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_SHELL_CONDITION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

struct ConditionToken {
  std::string text;
  bool is_operator;  // unquoted && || ( ) !
};

struct ShellCondition {
  bool holds = false;
  std::vector<std::string> notes;  // what was not understood, and taken as false
};

// Returns kInvalidArgument for parentheses and negations that are nested too deeply.
absl::StatusOr<ShellCondition> EvaluateShellCondition(const std::vector<ConditionToken>& tokens);

// Returns whether `text` matches `pattern`, in which * and ? are wildcards.
bool MatchesWildcards(absl::string_view pattern, absl::string_view text);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_SHELL_CONDITION_H_
