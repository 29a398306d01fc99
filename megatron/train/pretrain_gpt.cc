// Pretrains a GPT:  pretrain_gpt --config=gpt_demo.textproto [--set path.to.field=value]...
// [--dry_run]

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/debugging/symbolize.h"
#include "glog/logging.h"
#include "megatron/train/exit_code.h"
#include "megatron/train/pretrain.h"

namespace {

constexpr char kUsage[] =
    "Pretrains a GPT.\n"
    "\n"
    "  pretrain_gpt --config=FILE [--set FIELD=VALUE]... [--dry_run]\n"
    "\n"
    "  --config=FILE      a .textproto file, from where you stand, or the name of a shipped one "
    "(gpt_demo, gpt2_124m, ...)\n"
    "  --set FIELD=VALUE  overrides one field, for example --set train.train_iters=50; may be "
    "repeated\n"
    "  --dry_run          says what would run and what it would take: configuration, parameters, "
    "memory, FLOPs; allocates nothing\n"
    "\n"
    "docs/configuration.md explains every field.\n";

int Refuse(const std::string& message) {
  std::fprintf(stderr, "error: %s\n\n%s", message.c_str(), kUsage);
  return megatron::kExitConfig;
}

// "--name=value" or "--name", "value". Advances *i over what it takes.
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

int main(int argc, char** argv) {
  absl::InitializeSymbolizer(argv[0]);
  google::InitGoogleLogging(argv[0]);
  signal(SIGPIPE, SIG_IGN);  // training does not end with its reader
  FLAGS_logtostderr = true;
  const std::vector<std::string> args(argv + 1, argv + argc);
  megatron::PretrainCommand command;
  for (size_t i = 0; i < args.size(); ++i) {
    std::string value;
    if (args[i] == "--help" || args[i] == "-h") {
      std::printf("%s", kUsage);
      return 0;
    } else if (args[i] == "--dry_run") {
      command.dry_run = true;
    } else if (TakeValue(args, "--config", &i, &value)) {
      command.config = value;
    } else if (TakeValue(args, "--set", &i, &value)) {
      command.overrides.push_back(value);
    } else {
      return Refuse("what is " + args[i] + "?");
    }
  }
  if (command.config.empty()) return Refuse("--config is missing");
  const int code = megatron::PretrainGpt(command);
  // What was printed may be wanted: a plan that a full disk has cut is no plan.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (NobodyReads(STDOUT_FILENO)) return code;
  std::fprintf(stderr, "error: the output could not be written: %s\n", std::strerror(errno));
  return code == megatron::kExitDone ? megatron::kExitIo : code;
}
