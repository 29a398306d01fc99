// Turns a command line of Megatron-LM into a configuration:  from_megatron train.sh > my.textproto

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "megatron/base/status_macros.h"
#include "tools/common/tool_main.h"
#include "tools/from_megatron/from_megatron.h"

ABSL_FLAG(std::string, command, "", "A command line, in place of a script.");
ABSL_FLAG(std::vector<std::string>, variables, {},
          "Values of the script's variables, whatever it sets: NUM_NODES=4,DATA_PATH=/data/a.");
ABSL_FLAG(std::string, deepspeed_config, "", "A ds_config.json, with a script or alone.");
ABSL_FLAG(int64_t, world_size, 0,
          "Number of ranks. The default is what the launcher in the script says.");
ABSL_FLAG(std::string, model, "",
          "gpt, bert or t5. The default is what the name of the program in the script says.");

namespace megatron {
namespace {

constexpr size_t kLargestFile = (1 << 20) + 1;  // one byte more than is taken

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file;
  if (path != "-") file.open(path, std::ios::binary);
  std::istream& input = path == "-" ? std::cin : file;
  if (!input) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path));
  std::string text(kLargestFile, '\0');
  input.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (input.bad() || (!input && !input.eof()))
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path));
  text.resize(static_cast<size_t>(input.gcount()));
  return text;
}

absl::Status Main(const std::vector<std::string>& arguments) {
  FromMegatronInput input;
  input.script = absl::GetFlag(FLAGS_command);
  input.source = "--command";
  input.deepspeed_source = absl::GetFlag(FLAGS_deepspeed_config);
  input.world_size = absl::GetFlag(FLAGS_world_size);
  input.model = absl::GetFlag(FLAGS_model);
  if (input.world_size < 0 || input.world_size > (1 << 20))
    return absl::InvalidArgumentError("--world_size expects a number up to 1048576");
  if (!arguments.empty()) {
    if (!input.script.empty())
      return absl::InvalidArgumentError("give --command or a script, not both");
    input.source = arguments[0];
    MEGATRON_ASSIGN_OR_RETURN(input.script, ReadFile(arguments[0]));
    if (input.script.empty())
      return absl::InvalidArgumentError(absl::StrCat(arguments[0], " is empty"));
    input.arguments.assign(arguments.begin() + 1, arguments.end());
  }
  for (const std::string& entry : absl::GetFlag(FLAGS_variables)) {
    const std::pair<std::string, std::string> variable =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    if (variable.first.empty() || entry.find('=') == std::string::npos)
      return absl::InvalidArgumentError("--variables expects NAME=VALUE,...");
    input.variables[variable.first] = variable.second;
  }
  if (!input.deepspeed_source.empty()) {
    MEGATRON_ASSIGN_OR_RETURN(input.deepspeed, ReadFile(input.deepspeed_source));
    if (input.deepspeed.empty())
      return absl::InvalidArgumentError(absl::StrCat(input.deepspeed_source, " is empty"));
  }
  if (input.script.empty() && input.deepspeed.empty()) {
    return absl::InvalidArgumentError(
        "give a script, --command=\"...\" or --deepspeed_config=FILE; --help says more");
  }
  MEGATRON_ASSIGN_OR_RETURN(const FromMegatronResult result, FromMegatron(input));
  MEGATRON_RETURN_IF_ERROR(WriteToStdout(result.text));
  std::fputs(result.report.c_str(), stderr);
  if (result.is_same_run) return absl::OkStatus();
  return absl::InvalidArgumentError(
      result.errors.empty()
          ? "the configuration trains something else than the command line; the reasons are above"
          : "the configuration is not complete or not valid; the reasons are above");
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(
      argc, argv,
      "Turns a command line of Megatron-LM or Megatron-DeepSpeed into a configuration.\n\n"
      "  from_megatron train.sh CKPT DATA > my.textproto      a script and its arguments\n"
      "  from_megatron - < train.sh > my.textproto\n"
      "  from_megatron --command=\"torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24\"\n"
      "  from_megatron --deepspeed_config=ds_config.json train.sh > my.textproto\n\n"
      "Nothing is executed. What has no counterpart, or is said in another way, is listed on\n"
      "stderr and in comments. The exit code is 0 if the configuration is the same run, up to\n"
      "rounding, and 20 if it is not.",
      megatron::Main);
}
