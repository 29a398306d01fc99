// Runs the body of a program of this folder: flags, errors and exit codes.
//
//   int main(int argc, char** argv) { return megatron::RunTool(argc, argv, "Prints a dataset.",
//   Main); }
#ifndef MEGATRON_TOOLS_COMMON_TOOL_MAIN_H_
#define MEGATRON_TOOLS_COMMON_TOOL_MAIN_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

// Parses the flags, changes to the user's directory (`bazel run` starts programs elsewhere), calls
// `body` with the other arguments, and prints its error, if any, to stderr. Returns the exit code:
// 0; 20 for wrong flags and kInvalidArgument; 21 for data that is bad or missing (kDataLoss, see
// InputError); 30 for a rank that has gone (kUnavailable) and 31 for one that does not come
// (kDeadlineExceeded); 130 for kCancelled, as after Ctrl-C; 23 for all other errors, which are
// those of files. `usage` is what --help prints above the flags.
int RunTool(int argc, char** argv, absl::string_view usage,
            absl::FunctionRef<absl::Status(const std::vector<std::string>& arguments)> body);

// Writes the text at once. Errors name stdout.
absl::Status WriteToStdout(absl::string_view text);

// Turns an error of data that was to be read, such as a missing file, into kDataLoss. A kDataLoss,
// kInvalidArgument or kCancelled stays as it is.
absl::Status InputError(const absl::Status& status);

// Turns the kNotFound of a checkpoint that an argument names into kInvalidArgument, as pretrain_gpt
// does.
template <typename T>
absl::StatusOr<T> AsArgument(absl::StatusOr<T> named) {
  if (absl::IsNotFound(named.status())) return absl::InvalidArgumentError(named.status().message());
  return named;
}

template <typename T>
absl::StatusOr<T> AsInput(absl::StatusOr<T> input) {
  if (!input.ok()) return InputError(input.status());
  return input;
}

}  // namespace megatron

#endif  // MEGATRON_TOOLS_COMMON_TOOL_MAIN_H_
