// Reads the commands of a shell script, with their variables filled in, and executes nothing.
//
// It knows what scripts that start a training are made of: comments, quotes, line continuations,
// variables, arrays, arithmetic, `if`, `case`, `&&` and `||`, here-documents, `bash -c` and `eval`.
// It takes every command but `false` for successful, and looks at no file and no variable of its
// own process. What it cannot follow (loops, functions, the output of commands) is noted.

#ifndef MEGATRON_TOOLS_FROM_MEGATRON_SHELL_READER_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_SHELL_READER_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

struct ShellWord {
  std::string text;
  int line = 0;       // the line of its first character, which may be that of a variable's value
  std::string unset;  // what the word needs and the script does not say: "DATA_PATH"; often empty
};

struct ShellCommand {
  int line = 0;
  std::vector<ShellWord> words;  // never empty
};

struct ShellNote {
  int line;
  std::string text;
};

struct ShellScript {
  // The commands that would run, in order. A comment `#SBATCH --nodes=2` is one with the first word
  // "#SBATCH".
  std::vector<ShellCommand> commands;
  // The files that here-documents would be written to, by name.
  std::map<std::string, std::string> files;
  // The parts that were not followed.
  std::vector<ShellNote> notes;
  // For each ShellWord::unset, where its value would come from: "the script's argument 1".
  std::map<std::string, std::string> unset;
};

struct ShellInputs {
  std::vector<std::string> arguments;            // $1, $2, ...
  std::map<std::string, std::string> variables;  // They keep these values whatever is assigned.
};

// Returns kInvalidArgument with the line for syntax that is wrong or unknown, for texts of more
// than 1 MiB, and where variables grow beyond that.
absl::StatusOr<ShellScript> ReadShell(absl::string_view text, const ShellInputs& inputs);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_SHELL_READER_H_
