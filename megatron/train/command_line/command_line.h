// The command line of the pretrain_* programs: its flags, and what a user asks for with them.
#ifndef MEGATRON_TRAIN_COMMAND_LINE_COMMAND_LINE_H_
#define MEGATRON_TRAIN_COMMAND_LINE_COMMAND_LINE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megatron {

struct CommandLineFlag {
  enum class Value { kNone, kRequired, kOptional };

  absl::string_view name;  // "--set"
  Value value;             // whether a value follows: `--set=x` or `--set x`
  absl::string_view
      value_name;  // "FIELD=VALUE"; of an optional value the only one that is accepted
  absl::string_view help;
};

const std::vector<CommandLineFlag>& CommandLineFlags();

enum class DryRun { kOff, kScreen, kFull, kJson };

struct CommandLine {
  enum class Action { kRun, kExplain, kListConfigs, kCompletion, kHelp };

  Action action = Action::kRun;
  std::string config;                  // kRun
  std::vector<std::string> overrides;  // kRun: path.to.field=value
  DryRun dry_run = DryRun::kOff;       // kRun
  std::vector<std::string> fields;     // kExplain
  std::string shell;                   // kCompletion
};

// Reads the arguments after the program's name. A flag that would have no effect is an error too,
// but for a --config before another, which wins.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments);

struct ProgramName {
  std::string name;     // "pretrain_gpt"
  std::string model;    // "GPT"
  std::string example;  // "gpt_demo", a shipped configuration
};

// Returns a few lines: the ways to call the program.
std::string Synopsis(const ProgramName& program);
// Returns the text of --help, in lines of at most `columns`.
std::string Usage(const ProgramName& program, size_t columns);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_COMMAND_LINE_COMMAND_LINE_H_
