// Phrases about a run, for the plan and for the first lines of a run.
#ifndef MEGATRON_TRAIN_PREFLIGHT_DESCRIBE_RUN_H_
#define MEGATRON_TRAIN_PREFLIGHT_DESCRIBE_RUN_H_

#include <string>
#include <vector>

#include "megatron/train/config/config.pb.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

// Returns a text like "GPT of 4 layers, hidden 128, 4 heads, sequence 256, fp32".
std::string DescribeModel(const config::ModelConfig& config, const RunOptions& options);

// Returns advice on what would be faster if this machine ran `ranks` ranks of the run.
std::vector<std::string> AdviceFor(const RunOptions& options, int ranks);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_DESCRIBE_RUN_H_
