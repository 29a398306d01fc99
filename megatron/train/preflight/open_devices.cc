#include "megatron/train/preflight/open_devices.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/crc32c.h"
#include "megatron/base/status_macros.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/cuda/cudnn/cudnn_kernels.h"
#include "megatron/ops/cuda/gemm/gemm_planner.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/gemm/choose_epilogues.h"
#include "megatron/train/gemm/plan_gemms.h"
#include "megatron/train/trainer/flops.h"

namespace megatron {
namespace {

// Returns the least compute capability of the GPUs of this process's ranks.
int LeastComputeCapability(const RunOptions& options, const LaunchEnvironment& launch) {
  if (launch.world_size > 1) return CudaFacts(DeviceOfRank(launch.local_rank)).compute_capability;
  int least = CudaFacts(0).compute_capability;
  for (int gpu = 1; gpu < std::min(CudaDeviceCount(), options.num_ranks()); ++gpu)
    least = std::min(least, CudaFacts(gpu).compute_capability);
  return least;
}

}  // namespace

absl::StatusOr<DeviceLinks> OpenDeviceLinks(const RunOptions& options,
                                            const LaunchEnvironment& launch,
                                            const ProcessGroup& processes) {
  if (options.device != DeviceType::kCuda) return DeviceLinks();
  // What the process asks CUDA from now on makes no context on another rank's GPU.
  if (launch.world_size > 1) UseCudaDevice(DeviceOfRank(launch.local_rank));
  return WithExitCode(launch.world_size > 1 ? LinkProcesses(options, launch.local_rank, processes)
                                            : LinkThreads(options),
                      kExitConfig);
}

std::optional<double> PeakFlops(const RunOptions& options, int ranks_here) {
  if (options.device != DeviceType::kCuda) return std::nullopt;
  const bool half = options.trainer.model.transformer.dtype != DType::kFloat32;
  const std::optional<double> peak =
      PeakFlopsPerSecond(CudaFacts(0).name, half ? MatmulPrecision::kHalf : MatmulPrecision::kFp32);
  if (!peak) return std::nullopt;
  const double devices = std::min(CudaDeviceCount(), ranks_here);
  return *peak * devices / ranks_here * options.num_ranks();
}

GemmOptions OpenEpilogues(const RunOptions& options, const LaunchEnvironment& launch,
                          const ProcessGroup& processes) {
  if (options.device != DeviceType::kCuda) return options.gemms;
  return ChooseEpilogues(options, LeastComputeCapability(options, launch), processes);
}

absl::StatusOr<std::string> OpenGemmPlans(FileSystem& fs, const RunOptions& options) {
  if (options.device != DeviceType::kCuda) return std::string();
  GemmOptions gemms = options.gemms;
  if (!gemms.plan_file.empty()) gemms.plan_file = PathFromWhereTheUserStands(gemms.plan_file);
  return WithExitCode(PlanGemms(fs, gemms, &ops::cuda::ProcessGemmPlanner()), kExitConfig);
}

absl::StatusOr<AttentionChoice> OpenAttention(FileSystem& fs, const config::PretrainConfig& config,
                                              const RunOptions& options) {
  if (options.device != DeviceType::kCuda) return AttentionChoice();
  train::AttentionPlanFile plans;
  if (!options.attention.plan_file.empty()) {
    absl::StatusOr<train::AttentionPlanFile> read =
        ReadAttentionPlans(fs, PathFromWhereTheUserStands(options.attention.plan_file));
    MEGATRON_RETURN_IF_ERROR(WithExitCode(read.status(), kExitConfig),
                             _ << "system.attention_plan_file");
    plans = *std::move(read);
  }
  AttentionDevice device;
  device.gpu = CudaFacts(0).name;
  device.flash = ops::HopperAttentionIsAvailable();
  // Only a run that may use the library loads it.
  if (options.attention.backend == config::AttentionBackend::auto_ ||
      options.attention.backend == config::AttentionBackend::fused) {
    device.cudnn = ops::cuda::CudnnVersion().value_or("");
  }
  return ChooseAttention(config, options, device, plans);
}

std::string DescribeProducts(const RunOptions& options, const std::string& gemm_plans) {
  if (options.device != DeviceType::kCuda) return "";
  const GemmOptions& gemms = options.gemms;
  const std::string kernels = gemms.time_kernels ? "the fastest"
                              : gemms.plan_file.empty()
                                  ? "cuBLASLt's first choice"
                                  : absl::StrFormat("plans %08x", Crc32c(gemm_plans));
  const bool gelu = gemms.fuse_gelu != config::FuseGelu::none;
  return absl::StrCat(
      kernels, gemms.fuse_bias_gradients.value_or(false) ? ", with gradients of biases" : "",
      gelu ? absl::StrCat(", with GELU: ", config::FuseGelu::Type_Name(gemms.fuse_gelu)) : "");
}

std::string DescribeKernels(const RunOptions& options, const AttentionChoice& attention,
                            const std::string& products) {
  if (options.device != DeviceType::kCuda) return "";
  return absl::StrCat("attention: ", attention.order, "\nproducts: ", products, "\n");
}

}  // namespace megatron
