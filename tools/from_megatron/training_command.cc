#include "tools/from_megatron/training_command.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace megatron {
namespace {

constexpr int64_t kMostProcesses = 1 << 20;
constexpr size_t kNone = std::string::npos;

using Options = std::map<std::string, std::string>;

std::string BaseName(absl::string_view path) {
  return std::string(path.substr(path.rfind('/') + 1));
}

// Returns the index of the program among the words; kNone if this command trains nothing.
size_t FindProgram(const std::vector<ShellWord>& words) {
  size_t other = kNone;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string name = BaseName(words[i].text);
    if (!absl::EndsWith(name, ".py") || absl::StartsWith(name, "-")) continue;
    if (absl::StartsWith(name, "pretrain")) return i;
    if (other == kNone) other = i;
  }
  const bool has_sizes = absl::c_any_of(words, [](const ShellWord& word) {
    return absl::StartsWith(word.text, "--num-layers") ||
           absl::StartsWith(word.text, "--hidden-size") ||
           absl::StartsWith(word.text, "--micro-batch-size");
  });
  return has_sizes ? other : kNone;
}

// Returns the options among the words: the names without dashes, with '_' for '-'.
Options ReadOptions(const std::vector<ShellWord>& words) {
  Options options;
  for (size_t i = 0; i < words.size(); ++i) {
    absl::string_view text = words[i].text;
    if (!absl::ConsumePrefix(&text, "-")) continue;
    const bool is_long = absl::ConsumePrefix(&text, "-");
    const size_t equals = text.find('=');
    const std::string name = absl::StrReplaceAll(text.substr(0, equals), {{"-", "_"}});
    int64_t attached;
    if (equals != absl::string_view::npos) {
      options[name] = std::string(text.substr(equals + 1));
    } else if (!is_long && text.size() > 1 && absl::SimpleAtoi(text.substr(1), &attached)) {
      options[std::string(text.substr(0, 1))] = absl::StrCat(attached);  // -N4
    } else if (i + 1 < words.size() && !absl::StartsWith(words[i + 1].text, "-")) {
      options[name] = words[i + 1].text;
    } else {
      options[name] = "";
    }
  }
  return options;
}

// Returns the number that one of the options has, or `unset` if none is there, or 0 if it is no
// number.
int64_t Number(const Options& options, const std::vector<std::string>& names, int64_t unset) {
  for (const std::string& name : names) {
    const auto option = options.find(name);
    if (option == options.end()) continue;
    int64_t number;
    if (!absl::SimpleAtoi(option->second, &number)) return 0;
    return number >= 1 && number <= kMostProcesses ? number : 0;
  }
  return unset;
}

void SetWorld(int64_t nodes, int64_t processes, TrainingCommand* command) {
  if (nodes * processes == 0 || nodes * processes > kMostProcesses) return;
  command->world_size = nodes * processes;
  command->launched = absl::StrCat(nodes, nodes == 1 ? " node of " : " nodes of ", processes,
                                   processes == 1 ? " process" : " processes");
}

// Reads the launcher in front of the program.
void ReadLauncher(const std::vector<ShellWord>& words, const Options& batch,
                  TrainingCommand* command) {
  std::map<std::string, size_t> launchers;
  for (size_t i = 0; i < words.size(); ++i) launchers[BaseName(words[i].text)] = i;
  const auto options_behind = [&](size_t launcher) {
    return ReadOptions({words.begin() + launcher + 1, words.end()});
  };
  for (const char* name : {"torchrun", "torch.distributed.run", "torch.distributed.launch"}) {
    const auto found = launchers.find(name);
    if (found == launchers.end()) continue;
    const Options options = options_behind(found->second);
    const int64_t nodes = options.count("standalone") > 0 ? 1 : Number(options, {"nnodes"}, 1);
    return SetWorld(nodes, Number(options, {"nproc_per_node"}, 1), command);
  }
  if (const auto found = launchers.find("deepspeed"); found != launchers.end()) {
    const Options options = options_behind(found->second);
    const int64_t nodes = Number(options, {"num_nodes"}, options.count("hostfile") > 0 ? 0 : 1);
    return SetWorld(nodes, Number(options, {"num_gpus"}, 0), command);
  }
  if (const auto found = launchers.find("srun"); found != launchers.end()) {
    Options options = batch;
    for (const auto& [name, value] : options_behind(found->second)) options[name] = value;
    const int64_t tasks = Number(options, {"n", "ntasks"}, 0);
    if (tasks > 0) return SetWorld(1, tasks, command);
    return SetWorld(Number(options, {"N", "nodes"}, 1), Number(options, {"ntasks_per_node"}, 1),
                    command);
  }
  for (const char* name : {"mpirun", "mpiexec", "mpiexec.hydra"}) {
    const auto found = launchers.find(name);
    if (found == launchers.end()) continue;
    return SetWorld(1, Number(options_behind(found->second), {"np", "n", "c"}, 0), command);
  }
}

}  // namespace

absl::StatusOr<TrainingCommand> FindTrainingCommand(const ShellScript& script) {
  TrainingCommand found;
  Options batch;  // those of #SBATCH lines
  bool has_found = false;
  for (const ShellCommand& command : script.commands) {
    const std::vector<ShellWord>& words = command.words;
    if (words[0].text == "#SBATCH") {
      for (const auto& [name, value] : ReadOptions({words.begin() + 1, words.end()}))
        batch[name] = value;
      continue;
    }
    const bool flags_alone = absl::StartsWith(words[0].text, "--");
    const size_t program = flags_alone ? kNone : FindProgram(words);
    if (program == kNone && !flags_alone) continue;
    if (has_found) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", command.line, " starts a second training, after line ", found.line,
                       "; give a script with one of them"));
    }
    has_found = true;
    found.line = command.line;
    found.flags = words;
    if (flags_alone) continue;
    found.program = BaseName(words[program].text);
    found.flags.erase(found.flags.begin(), found.flags.begin() + program + 1);
    ReadLauncher({words.begin(), words.begin() + program}, batch, &found);
  }
  if (!has_found) {
    return absl::InvalidArgumentError(
        "no command runs a file pretrain_*.py, and none begins with a flag; give the script that "
        "starts the training, or its flags alone; a ds_config.json is given by "
        "--deepspeed_config=FILE");
  }
  return found;
}

}  // namespace megatron
