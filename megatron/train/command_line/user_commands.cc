#include "megatron/train/command_line/user_commands.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "megatron/base/shell_command.h"
#include "megatron/comm/launch/own_program.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool IsProgram(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

// Returns whether the workspace has tools/BUILD with a target of this name.
bool HasTool(const fs::path& workspace, const std::string& name) {
  std::ifstream file(workspace / "tools/BUILD");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return absl::StrContains(text, absl::StrCat("name = \"", name, "\""));
}

// Returns the label of a program that Bazel has built, "//megatron/train:pretrain_gpt"; empty if it
// is no such program.
std::string LabelOf(absl::string_view program_file) {
  const size_t outputs = program_file.find("/bazel-out/");
  if (outputs == program_file.npos) return "";
  constexpr absl::string_view kBin = "/bin/";
  const size_t bin = program_file.find(kBin, outputs);
  if (bin == program_file.npos) return "";
  const fs::path target = std::string(program_file.substr(bin + kBin.size()));
  return absl::StrCat("//", target.parent_path().string(), ":", target.filename().string());
}

// Returns the path in a form that a shell takes for a path and not for a name.
std::string WithDirectory(const fs::path& path) {
  const std::string text = path.lexically_normal().string();
  return absl::StrContains(text, '/') ? text : absl::StrCat("./", text);
}

}  // namespace

UserCommands UserCommands::OfThisProcess(const std::string& program) {
  Surroundings here;
  here.typed_program = Variable(kTypedProgramVariable);
  if (here.typed_program.empty()) here.typed_program = program;
  here.program_file = OwnProgram();
  here.working_directory = Variable("BUILD_WORKING_DIRECTORY");
  here.run_workspace = Variable("BUILD_WORKSPACE_DIRECTORY");
  here.search_path = Variable("PATH");
  here.instruction_set = Variable("MEGATRON_CPU_ISA");
  std::error_code error;
  if (here.working_directory.empty()) here.working_directory = fs::current_path(error).string();
  return UserCommands(std::move(here));
}

std::vector<std::string> UserCommands::BazelRun(const std::string& workspace,
                                                const std::string& label) const {
  const fs::path wrapper = fs::path(workspace) / "bazelw";
  const std::string bazel = IsProgram(wrapper)
                                ? WithDirectory(wrapper.lexically_relative(here_.working_directory))
                                : "bazel";
  return {bazel, "run", label, "--"};
}

std::string UserCommands::Self(const std::vector<std::string>& arguments) const {
  const std::string label = LabelOf(here_.program_file);
  std::vector<std::string> words = {here_.typed_program};
  if (!here_.run_workspace.empty() && !label.empty()) words = BazelRun(here_.run_workspace, label);
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::string& isa = here_.instruction_set;
  return absl::StrCat(isa.empty() ? "" : absl::StrCat("MEGATRON_CPU_ISA=", isa, " "),
                      ShellCommand(words));
}

std::optional<std::vector<std::string>> UserCommands::FindTool(const std::string& name) const {
  const std::string label = absl::StrCat("//tools:", name);
  if (!here_.run_workspace.empty()) {
    if (!HasTool(here_.run_workspace, name)) return std::nullopt;
    return BazelRun(here_.run_workspace, label);
  }
  const fs::path typed = here_.typed_program, user = here_.working_directory;
  if (!typed.has_parent_path()) {
    for (const absl::string_view directory : absl::StrSplit(here_.search_path, ':')) {
      if (IsProgram(fs::path(std::string(directory)) / name)) return std::vector<std::string>{name};
    }
    return std::nullopt;
  }
  // A folder of programs, or Bazel's folders, where a large tool has one of its own.
  const fs::path folder = typed.parent_path().parent_path().parent_path() / "tools";
  for (const fs::path& tool : {typed.parent_path() / name, folder / name, folder / name / name}) {
    if (IsProgram(user / tool)) return std::vector<std::string>{WithDirectory(tool)};
  }
  if (LabelOf(here_.program_file).empty()) return std::nullopt;
  // The tool has not been built.
  for (fs::path workspace = user;; workspace = workspace.parent_path()) {
    if (HasTool(workspace, name)) return BazelRun(workspace.string(), label);
    if (!workspace.has_relative_path()) return std::nullopt;
  }
}

std::optional<std::string> UserCommands::Tool(const std::string& name,
                                              const std::vector<std::string>& arguments) const {
  std::optional<std::vector<std::string>> words = FindTool(name);
  if (!words) return std::nullopt;
  words->insert(words->end(), arguments.begin(), arguments.end());
  return ShellCommand(*words);
}

std::string UserCommands::PathFromHere(const std::string& path) const {
  const fs::path relative =
      fs::path(path).lexically_normal().lexically_relative(here_.working_directory);
  if (relative.empty() || *relative.begin() == "..") return path;
  return relative.string();
}

}  // namespace megatron
