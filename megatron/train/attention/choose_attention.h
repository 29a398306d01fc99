// Chooses the kernels of a run's attention on a GPU (system.attention_backend).
#ifndef MEGATRON_TRAIN_ATTENTION_CHOOSE_ATTENTION_H_
#define MEGATRON_TRAIN_ATTENTION_CHOOSE_ATTENTION_H_

#include <string>
#include <vector>

#include "megatron/ops/attention_kernel.h"
#include "megatron/train/attention/attention_plan_file.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

// The kernels that a machine offers beside `local`.
struct AttentionDevice {
  std::string gpu;     // the driver's name of the GPU
  bool flash = false;  // those for Hopper can run
  std::string cudnn;   // version of the library; empty: it is not here
};

struct AttentionChoice {
  ops::AttentionKernels kernels;
  // The backends in the order in which they are tried, as checkpoints record it:
  // "flash, fused 9.19.0, local". Empty on the CPU.
  std::string order;
  // The backends that could have been chosen and are not, each with the reason: "fused: cuDNN does
  // not draw our dropout (model.attention_dropout = 0.1)".
  std::vector<std::string> left_out;
};

// Expects a valid configuration with its computed fields set, and its options. Backends that the
// device does not offer, or that could compute none of the run's attention, are left out.
AttentionChoice ChooseAttention(const config::PretrainConfig& config, const RunOptions& options,
                                const AttentionDevice& device,
                                const train::AttentionPlanFile& plans);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_ATTENTION_CHOOSE_ATTENTION_H_
