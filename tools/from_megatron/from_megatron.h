// Turns a command line of Megatron-LM or Megatron-DeepSpeed, and a ds_config.json, into a
// configuration of this project.
#ifndef MEGATRON_TOOLS_FROM_MEGATRON_FROM_MEGATRON_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_FROM_MEGATRON_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/train/config/config.pb.h"
#include "tools/from_megatron/findings.h"

namespace megatron {

struct FromMegatronInput {
  std::string source;                            // the script's name in messages: "train.sh"
  std::string script;                            // a script, or the flags alone; empty for none
  std::vector<std::string> arguments;            // the script's arguments
  std::map<std::string, std::string> variables;  // variables that the script does not set
  std::string deepspeed_source;
  std::string deepspeed;   // the text of a ds_config.json; empty for none
  int64_t world_size = 0;  // number of ranks; 0: as the launcher in the script says
  std::string model;       // "gpt", "bert" or "t5"; empty: as the program in the script says
};

struct FromMegatronResult {
  config::PretrainConfig config;  // the fields that were set
  std::string text;               // the same as text, with the report as comments
  std::string report;             // the findings, for people
  Findings findings;
  std::vector<std::string> errors;  // what the project's own validation says
  // True if the run is the one of the command line, up to rounding, and can be started once what
  // the findings leave to do (Effect::kToDo) is done.
  bool is_same_run = false;
};

// Executes nothing and reads no file. Returns kInvalidArgument with the line of everything that is
// no valid script, flag or JSON.
absl::StatusOr<FromMegatronResult> FromMegatron(const FromMegatronInput& input);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_FROM_MEGATRON_H_
