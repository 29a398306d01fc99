// Commands for the user to type next.
#ifndef MEGATRON_TRAIN_COMMAND_LINE_USER_COMMANDS_H_
#define MEGATRON_TRAIN_COMMAND_LINE_USER_COMMANDS_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace megatron {

// The variable by which a process that starts ranks tells them how the user has called it.
inline constexpr char kTypedProgramVariable[] = "MEGATRON_TYPED_PROGRAM";

class UserCommands {
 public:
  struct Surroundings {
    std::string typed_program;      // the program as the user has called it
    std::string program_file;       // the file that runs
    std::string working_directory;  // the absolute path of where the user stands
    std::string run_workspace;      // the workspace whose `bazel run` has started the program
    std::string search_path;        // $PATH
    std::string instruction_set;    // $MEGATRON_CPU_ISA, on which results depend; often empty
  };

  // Commands for nobody: there are no tools.
  UserCommands() = default;
  explicit UserCommands(Surroundings surroundings) : here_(std::move(surroundings)) {}

  // Returns the commands for the user who has started this process, with argv[0] `program`.
  static UserCommands OfThisProcess(const std::string& program);

  // Returns the command that starts this program again with these arguments.
  std::string Self(const std::vector<std::string>& arguments) const;

  // Returns the command that starts a program of tools/, in the way in which this program was
  // started: by `bazel run`, by a path or by its name. Returns nothing if the tool is not found.
  std::optional<std::string> Tool(const std::string& name,
                                  const std::vector<std::string>& arguments) const;

  // Returns the path as it is seen from where the user stands, if it is below that directory.
  std::string PathFromHere(const std::string& path) const;

 private:
  std::optional<std::vector<std::string>> FindTool(const std::string& name) const;
  std::vector<std::string> BazelRun(const std::string& workspace, const std::string& label) const;

  Surroundings here_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_COMMAND_LINE_USER_COMMANDS_H_
