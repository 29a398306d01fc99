#include "megatron/train/pretrain_main.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/debugging/symbolize.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/train/config/config_reference.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/list_configs.h"
#include "megatron/train/pretrain.h"

namespace megatron {
namespace {

std::string Usage(const PretrainProgram& program) {
  return absl::StrCat(
      "Pretrains a ", program.model, ".\n\n  ", program.name,
      " --config=FILE [--set FIELD=VALUE]... [--profile] [--dry_run]\n  ", program.name,
      " --explain FIELD | --list_configs\n"
      "\n"
      "  --config=FILE      a .textproto file, from where you stand, or the name of a shipped one "
      "(",
      program.example,
      ", ...)\n"
      "  --set FIELD=VALUE  overrides one field, for example --set train.train_iters=50; may be "
      "repeated\n"
      "  --profile          writes when each part of some steps ran, and memory by name; the same "
      "as --set logging.profile=true\n"
      "  --dry_run          says what would run and what it would take: configuration, parameters, "
      "memory, FLOPs; allocates nothing\n"
      "  --explain FIELD    prints what a field means, its range, its default and when it has an "
      "effect: --explain sequence_parallel; of a section (--explain parallel), lists its fields\n"
      "  --list_configs     lists the shipped configurations: model, parameters, layout and what "
      "each is\n"
      "\n"
      "docs/configuration.md explains every field.\n");
}

int Refuse(const PretrainProgram& program, const std::string& message) {
  std::fprintf(stderr, "error: %s\n\n%s", message.c_str(), Usage(program).c_str());
  return kExitConfig;
}

// Prints what was asked for, or why there is none.
int Print(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(text.status().message()).c_str());
    return kExitConfig;
  }
  std::printf("%s", text->c_str());
  return kExitDone;
}

// Takes "--name=value" or "--name", "value". Advances *i over what it takes.
bool TakeValue(const std::vector<std::string>& args, const std::string& name, size_t* i,
               std::string* value) {
  const std::string& arg = args[*i];
  if (arg.compare(0, name.size() + 1, name + "=") == 0) {
    *value = arg.substr(name.size() + 1);
    return true;
  }
  if (arg != name || *i + 1 >= args.size()) return false;
  *value = args[++*i];
  return true;
}

// Whoever read the output has enough of it, as head has.
bool NobodyReads(int descriptor) {
  pollfd entry = {descriptor, POLLOUT, 0};
  return poll(&entry, 1, 0) == 1 && (entry.revents & POLLERR) != 0;
}

}  // namespace

int PretrainMain(const PretrainProgram& program, int argc, char** argv) {
  absl::InitializeSymbolizer(argv[0]);
  google::InitGoogleLogging(argv[0]);
  signal(SIGPIPE, SIG_IGN);  // training does not end with its reader
  FLAGS_logtostderr = true;
  const std::vector<std::string> args(argv + 1, argv + argc);
  PretrainCommand command;
  command.model_type = program.model_type;
  command.on_piece = program.on_piece;
  for (size_t i = 0; i < args.size(); ++i) {
    std::string value;
    if (args[i] == "--help" || args[i] == "-h") {
      std::printf("%s", Usage(program).c_str());
      return 0;
    } else if (args[i] == "--dry_run") {
      command.dry_run = true;
    } else if (args[i] == "--profile") {
      command.overrides.push_back("logging.profile=true");
    } else if (TakeValue(args, "--explain", &i, &value)) {
      return Print(ExplainField(value));
    } else if (args[i] == "--list_configs") {
      return Print(ListConfigs());
    } else if (TakeValue(args, "--config", &i, &value)) {
      command.config = value;
    } else if (TakeValue(args, "--set", &i, &value)) {
      command.overrides.push_back(value);
    } else {
      for (const char* flag : {"--explain", "--config", "--set"}) {
        if (args[i] == flag) return Refuse(program, args[i] + " needs a value");
      }
      return Refuse(program, "unknown argument " + args[i]);
    }
  }
  if (command.config.empty()) return Refuse(program, "--config is missing");
  const int code = Pretrain(command);
  // A failed flush is an error: a plan that a full disk has cut off is no plan.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (NobodyReads(STDOUT_FILENO)) return code;
  std::fprintf(stderr, "error: the output could not be written: %s\n", std::strerror(errno));
  return code == kExitDone ? kExitIo : code;
}

}  // namespace megatron
