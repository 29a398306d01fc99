#include "megatron/train/command_line/command_line.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "megatron/base/status_macros.h"
#include "megatron/train/config/config_nearest_name.h"
#include "megatron/train/console/wrap_text.h"

namespace megatron {
namespace {

using Value = CommandLineFlag::Value;

bool IsFlag(absl::string_view argument) { return absl::StartsWith(argument, "-"); }

const CommandLineFlag* FindFlag(absl::string_view name) {
  for (const CommandLineFlag& flag : CommandLineFlags()) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

absl::Status UnknownArgument(absl::string_view argument, bool has_config) {
  std::string message = absl::StrCat("unknown argument ", argument);
  const bool has_equals = absl::StrContains(argument, '=');
  if (!IsFlag(argument) && (has_equals || !has_config)) {
    absl::StrAppend(&message, "; did you mean ", has_equals ? "--set " : "--config=", argument,
                    "?");
  } else if (IsFlag(argument)) {
    std::vector<std::string> names;
    for (const CommandLineFlag& flag : CommandLineFlags()) names.emplace_back(flag.name);
    const std::string nearest = NearestName(argument.substr(0, argument.find('=')), names);
    if (!nearest.empty()) absl::StrAppend(&message, "; did you mean ", nearest, "?");
  }
  return absl::InvalidArgumentError(message);
}

class Parser {
 public:
  explicit Parser(const std::vector<std::string>& arguments) : arguments_(arguments) {}

  absl::StatusOr<CommandLine> Parse() {
    // Whoever asks for help gets it, whatever else is wrong.
    for (const std::string& argument : arguments_) {
      if (argument == "-h" || argument == "--help") {
        line_.action = CommandLine::Action::kHelp;
        return line_;
      }
    }
    while (next_ < arguments_.size()) MEGATRON_RETURN_IF_ERROR(Take(arguments_[next_++]));
    MEGATRON_RETURN_IF_ERROR(CheckCombination());
    return std::move(line_);
  }

 private:
  absl::Status Take(const std::string& argument) {
    const size_t equals = argument.find('=');
    const CommandLineFlag* const flag = FindFlag(argument.substr(0, equals));
    if (flag == nullptr) return UnknownArgument(argument, given_.count("--config") > 0);
    given_.insert(flag->name);
    std::string value;
    if (equals != argument.npos) {
      value = argument.substr(equals + 1);
      if (flag->value == Value::kNone)
        return absl::InvalidArgumentError(absl::StrCat(flag->name, " takes no value"));
    } else if (flag->value == Value::kRequired) {
      if (next_ == arguments_.size() || absl::StartsWith(arguments_[next_], "--"))
        return absl::InvalidArgumentError(absl::StrCat(flag->name, " needs a value"));
      value = arguments_[next_++];
    }
    return Apply(flag->name, equals != argument.npos, std::move(value));
  }

  absl::Status Apply(absl::string_view name, bool has_equals, std::string value) {
    if (name == "--config") line_.config = std::move(value);
    if (name == "--set") line_.overrides.push_back(std::move(value));
    if (name == "--profile") line_.overrides.push_back("logging.profile=true");
    if (name == "--explain") {
      line_.fields.push_back(std::move(value));
      while (next_ < arguments_.size() && !IsFlag(arguments_[next_]))
        line_.fields.push_back(arguments_[next_++]);
    }
    if (name == "--completion") line_.shell = std::move(value);
    if (name != "--dry_run") return absl::OkStatus();
    line_.dry_run = has_equals ? DryRun::kFull : DryRun::kScreen;
    if (!has_equals || value == "full") return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--dry_run=", value, ": give --dry_run or --dry_run=full"));
  }

  // Sets the action, and refuses flags that it does not look at.
  absl::Status CheckCombination() {
    constexpr std::pair<absl::string_view, CommandLine::Action> kAlone[] = {
        {"--explain", CommandLine::Action::kExplain},
        {"--list_configs", CommandLine::Action::kListConfigs},
        {"--completion", CommandLine::Action::kCompletion}};
    for (const auto& [name, action] : kAlone) {
      if (given_.count(name) == 0) continue;
      if (given_.size() > 1) {
        std::set<absl::string_view> others = given_;
        others.erase(name);
        return absl::InvalidArgumentError(
            absl::StrCat(*others.begin(), " has no effect with ", name));
      }
      line_.action = action;
      return absl::OkStatus();
    }
    if (given_.count("--json") > 0) {
      if (line_.dry_run == DryRun::kOff)
        return absl::InvalidArgumentError("--json has no effect without --dry_run");
      if (line_.dry_run == DryRun::kFull) {
        return absl::InvalidArgumentError(
            "--json prints everything: give --dry_run in place of --dry_run=full");
      }
      line_.dry_run = DryRun::kJson;
    }
    if (line_.config.empty()) return absl::InvalidArgumentError("--config is missing");
    return absl::OkStatus();
  }

  const std::vector<std::string>& arguments_;
  size_t next_ = 0;
  std::set<absl::string_view> given_;
  CommandLine line_;
};

std::string Spelling(const CommandLineFlag& flag) {
  if (flag.value == Value::kNone) return std::string(flag.name);
  if (flag.value == Value::kOptional) return absl::StrCat(flag.name, "[=", flag.value_name, "]");
  // A value with a '=' of its own reads better behind a space.
  return absl::StrCat(flag.name, absl::StrContains(flag.value_name, '=') ? " " : "=",
                      flag.value_name);
}

}  // namespace

const std::vector<CommandLineFlag>& CommandLineFlags() {
  static const auto* const flags = new std::vector<CommandLineFlag>{
      {"--config", Value::kRequired, "FILE",
       "a .textproto file, from where you stand, or the name of a shipped one"},
      {"--set", Value::kRequired, "FIELD=VALUE",
       "overrides one field, for example --set train.train_iters=500; may be repeated"},
      {"--profile", Value::kNone, "",
       "writes when each part of some steps ran, and memory by name; the same as --set "
       "logging.profile=true"},
      {"--dry_run", Value::kOptional, "full",
       "says on one screen what would run and what it would take; allocates nothing. "
       "--dry_run=full prints every field, and every kind of memory of every rank"},
      {"--json", Value::kNone, "", "with --dry_run: prints one JSON object"},
      {"--explain", Value::kRequired, "FIELD...",
       "prints what a field means, its range, its default and when it has an effect: --explain "
       "sequence_parallel; of a section (--explain parallel), lists its fields"},
      {"--list_configs", Value::kNone, "",
       "lists the shipped configurations: model, parameters, layout and what each is"},
      {"--completion", Value::kRequired, "bash|zsh",
       "prints a script that completes flags, configurations and fields"},
      {"--help", Value::kNone, "", "prints this"}};
  return *flags;
}

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments) {
  return Parser(arguments).Parse();
}

std::string Synopsis(const ProgramName& program) {
  return absl::StrCat("  ", program.name, " --config=FILE [--set FIELD=VALUE]... [--dry_run]\n  ",
                      program.name, " --explain FIELD... | --list_configs | --help\n");
}

std::string Usage(const ProgramName& program, size_t columns) {
  std::string text = absl::StrCat("Pretrains a ", program.model, ".\n\n", Synopsis(program), "\n");
  size_t width = 0;
  for (const CommandLineFlag& flag : CommandLineFlags())
    width = std::max(width, Spelling(flag).size());
  const std::string indent(width + 4, ' ');
  for (const CommandLineFlag& flag : CommandLineFlags()) {
    const std::string spelling = Spelling(flag);
    const std::string line =
        absl::StrCat("  ", spelling, std::string(width + 2 - spelling.size(), ' '), flag.help);
    absl::StrAppend(&text, WrapText(line, indent, columns), "\n");
  }
  absl::StrAppend(&text, "\nBegin with:  ", program.name, " --config=", program.example,
                  "\ndocs/configuration.md explains every field.\n");
  return text;
}

}  // namespace megatron
