#include "megatron/train/preflight/open_devices.h"

#include <algorithm>

#include "megatron/ops/cuda/gemm/gemm_planner.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/gemm/plan_gemms.h"
#include "megatron/train/trainer/flops.h"

namespace megatron {

absl::StatusOr<DeviceLinks> OpenDeviceLinks(const RunOptions& options,
                                            const LaunchEnvironment& launch,
                                            const ProcessGroup& processes) {
  if (options.device != DeviceType::kCuda) return DeviceLinks();
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

absl::StatusOr<std::string> OpenGemmPlans(FileSystem& fs, const RunOptions& options) {
  if (options.device != DeviceType::kCuda) return std::string();
  GemmOptions gemms = options.gemms;
  if (!gemms.plan_file.empty()) gemms.plan_file = PathFromWhereTheUserStands(gemms.plan_file);
  return WithExitCode(PlanGemms(fs, gemms, &ops::cuda::ProcessGemmPlanner()), kExitConfig);
}

}  // namespace megatron
