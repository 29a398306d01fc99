// Turns a configuration into what will run: the options of the libraries, the tokenizer, the memory
// plan and the arithmetic.
#ifndef MEGATRON_TRAIN_PREFLIGHT_PLAN_PRETRAINING_H_
#define MEGATRON_TRAIN_PREFLIGHT_PLAN_PRETRAINING_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/metrics/step_meter.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {

// Checks that the program that trains `model_type` ("gpt") may train this configuration, whose file
// or name is `config_name`.
absl::Status CheckModelType(const config::PretrainConfig& config, const std::string& config_name,
                            const std::string& model_type);

struct PlannedPretraining {
  RunOptions options;
  std::unique_ptr<Tokenizer> tokenizer;
  RunPlan plan;
  SpeedBasis speed;  // set except for the devices' peak
  // With a topology file: the order of ranks that was taken, and why.
  std::string rank_order;
  // With recompute.cpu_offloading_auto on GPUs: the number of layers that was taken, and why.
  std::string offload;
};

// Expects a valid configuration whose paths are resolved. Errors carry kExitConfig.
absl::StatusOr<PlannedPretraining> PlanPretraining(const config::PretrainConfig& config);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_PLAN_PRETRAINING_H_
