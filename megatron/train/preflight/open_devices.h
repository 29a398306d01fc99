// The GPUs of a run: how its ranks reach each other's, how fast they can be, and which kernels they
// use. On the CPU there is nothing to open.
#ifndef MEGATRON_TRAIN_PREFLIGHT_OPEN_DEVICES_H_
#define MEGATRON_TRAIN_PREFLIGHT_OPEN_DEVICES_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "megatron/base/file_system.h"
#include "megatron/comm/launch/launch_env.h"
#include "megatron/comm/process_group.h"
#include "megatron/train/attention/choose_attention.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/preflight/device_links.h"
#include "megatron/train/trainer/run_options.h"

namespace megatron {

// Chooses how ranks send each other what is on their GPUs. Collective over the processes, each of
// which makes its rank's GPU the thread's current one. Errors carry kExitConfig.
absl::StatusOr<DeviceLinks> OpenDeviceLinks(const RunOptions& options,
                                            const LaunchEnvironment& launch,
                                            const ProcessGroup& processes);

// The peak of the GPUs of all ranks in FLOP/s, where this machine has `ranks_here` of the ranks;
// unset where it is unknown. Ranks that share a GPU share its peak.
std::optional<double> PeakFlops(const RunOptions& options, int ranks_here);

// Decides what matrix products on the GPUs compute beside (gemm/choose_epilogues.h). Collective over
// the processes. Options for the CPU stay as they are.
GemmOptions OpenEpilogues(const RunOptions& options, const LaunchEnvironment& launch,
                          const ProcessGroup& processes);

// Reads the plans for matrix products that system.gemm_plan_file names. Returns them as text.
// Errors carry kExitConfig.
absl::StatusOr<std::string> OpenGemmPlans(FileSystem& fs, const RunOptions& options);

// Chooses attention's kernels by what this machine offers and by system.attention_plan_file. Errors
// carry kExitConfig.
absl::StatusOr<AttentionChoice> OpenAttention(FileSystem& fs, const config::PretrainConfig& config,
                                              const RunOptions& options);

// Returns how the kernels of matrix products are chosen, and what they compute beside: "the fastest,
// with gradients of biases, with GELU: backward". Empty on the CPU. `gemm_plans` is the text of
// OpenGemmPlans.
std::string DescribeProducts(const RunOptions& options, const std::string& gemm_plans);

// Returns the kernels that were chosen, in lines "name: value", as checkpoints record them; empty
// on the CPU. `products` is the text of DescribeProducts.
std::string DescribeKernels(const RunOptions& options, const AttentionChoice& attention,
                            const std::string& products);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PREFLIGHT_OPEN_DEVICES_H_
