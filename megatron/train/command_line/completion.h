// Scripts by which a shell completes the command line of the pretrain_* programs.
#ifndef MEGATRON_TRAIN_COMMAND_LINE_COMPLETION_H_
#define MEGATRON_TRAIN_COMMAND_LINE_COMPLETION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

// Returns a script for `shell`, "bash" or "zsh", that completes flags, files and these names of
// configurations, fields, and the values of fields that have names. It does not start the program.
absl::StatusOr<std::string> CompletionScript(absl::string_view shell, absl::string_view program,
                                             const std::vector<std::string>& configs);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_COMMAND_LINE_COMPLETION_H_
