#ifndef MEGATRON_TRAIN_PREFLIGHT_CHECK_SAME_RUN_H_
#define MEGATRON_TRAIN_PREFLIGHT_CHECK_SAME_RUN_H_

#include <string>

#include "absl/status/status.h"
#include "megatron/comm/process_group.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// The inputs of a run that each process found out for itself.
struct RunInputs {
  config::PretrainConfig config;
  std::string data_fingerprint;
  std::string gemm_plans;       // the plans as text
  std::string attention;        // the order of attention's kernels
  std::string checkpoint;       // the directory to start from; empty: from the beginning
  std::string instruction_set;  // as "avx512"; empty on devices other than the CPU
  std::string rank_order;       // "tp-cp-ep-dp-pp"
};

// Checks that all processes of a run are going to do the same. Collective. Each process gets the
// error of its own difference to the first one. Errors carry kExitConfig, or kExitCorruptCheckpoint
// where the checkpoints differ.
absl::Status CheckSameRun(const RunInputs& mine, const ProcessGroup& processes);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_CHECK_SAME_RUN_H_
