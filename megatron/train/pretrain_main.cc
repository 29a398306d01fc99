#include "megatron/train/pretrain_main.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/debugging/symbolize.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/base/out_of_memory.h"
#include "megatron/base/standard_streams.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/command_line/command_line.h"
#include "megatron/train/command_line/completion.h"
#include "megatron/train/config/config_reference.h"
#include "megatron/train/config/own_sections.h"
#include "megatron/train/console/terminal.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/list_configs.h"
#include "megatron/train/preflight/check_limits.h"

namespace megatron {
namespace {

constexpr int kWidestText = 100;

ProgramName NameOf(const PretrainProgram& program) {
  return {program.name, program.model, program.example};
}

size_t Columns() {
  return static_cast<size_t>(std::min(TerminalColumns(stdout, kWidestText), kWidestText));
}

int PrintError(absl::string_view message) {
  std::fprintf(stderr, "error: %s\n", std::string(message).c_str());
  return kExitConfig;
}

absl::StatusOr<std::string> Explain(const std::vector<std::string>& fields) {
  std::string text;
  for (const std::string& field : fields) {
    MEGATRON_ASSIGN_OR_RETURN(const std::string about, ExplainField(field, Columns()));
    absl::StrAppend(&text, text.empty() ? "" : "\n", about);
  }
  return text;
}

absl::StatusOr<std::string> Completion(const PretrainProgram& program, const std::string& shell) {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> configs,
                            ConfigsOfModel(program.model_type));
  return CompletionScript(shell, program.name, configs);
}

// Returns the text that was asked for; the action is not kRun.
absl::StatusOr<std::string> TextFor(const PretrainProgram& program, const CommandLine& line) {
  switch (line.action) {
    case CommandLine::Action::kExplain:
      return Explain(line.fields);
    case CommandLine::Action::kListConfigs:
      return ListConfigs();
    case CommandLine::Action::kCompletion:
      return Completion(program, line.shell);
    default:
      return Usage(NameOf(program), Columns());
  }
}

int RunCommand(const PretrainProgram& program, const std::string& typed, const CommandLine& line) {
  if (line.action == CommandLine::Action::kRun) {
    PretrainCommand command;
    command.program = typed;
    command.model_type = program.model_type;
    command.config = line.config;
    command.overrides = line.overrides;
    command.dry_run = line.dry_run;
    command.on_config = program.on_config;
    command.on_piece = program.on_piece;
    return Pretrain(command);
  }
  const absl::StatusOr<std::string> text = TextFor(program, line);
  if (!text.ok()) return PrintError(text.status().message());
  std::fwrite(text->data(), 1, text->size(), stdout);
  return kExitDone;
}

// Whoever read the output has enough of it, as head has.
bool NobodyReads(int descriptor) {
  pollfd entry = {descriptor, POLLOUT, 0};
  return poll(&entry, 1, 0) == 1 && (entry.revents & POLLERR) != 0;
}

}  // namespace

int PretrainMain(const PretrainProgram& program, int argc, char** argv) {
  KeepStandardStreams();
  absl::InitializeSymbolizer(argv[0]);
  google::InitGoogleLogging(argv[0]);
  signal(SIGPIPE, SIG_IGN);  // training does not end with its reader
  SetExitCodeForWantOfMemory(kExitConfig);
  PrepareForLimits();
  FLAGS_logtostderr = true;
  CheckOwnSections();
  const absl::StatusOr<CommandLine> line =
      ParseCommandLine(std::vector<std::string>(argv + 1, argv + argc));
  if (!line.ok()) {
    const int code = PrintError(line.status().message());
    std::fprintf(stderr, "\n%s", Synopsis(NameOf(program)).c_str());
    return code;
  }
  const int code = RunCommand(program, argv[0], *line);
  // A failed flush is an error: a plan that a full disk has cut off is no plan.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (NobodyReads(STDOUT_FILENO)) return code;
  std::fprintf(stderr, "error: the output could not be written: %s\n", std::strerror(errno));
  return code == kExitDone ? kExitIo : code;
}

}  // namespace megatron
