#include "megatron/train/preflight/check_memory.h"

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "megatron/base/quantity.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {
namespace {

int64_t FreeDeviceBytes() {
  int64_t bytes = 0;
  for (int device = 0; device < CudaDeviceCount(); ++device) bytes += CudaFacts(device).free_bytes;
  return bytes;
}

}  // namespace

std::optional<int64_t> AvailableHostBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name, unit;
  int64_t kilobytes = 0;
  while (meminfo >> name >> kilobytes >> unit) {
    if (name == "MemAvailable:") return kilobytes * 1024;
  }
  return std::nullopt;
}

int64_t HostBytes(const RunOptions& options, const RunPlan& plan, int ranks) {
  return plan.machine_bytes(ranks, options.ranks.processes ? ranks : 1);
}

absl::Status CheckFits(int64_t planned, std::optional<int64_t> available, bool on_gpus) {
  if (!available.has_value() || planned <= *available) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the run takes ", FormatBytes(planned), " of ", on_gpus ? "the GPUs' " : "", "memory and ",
      FormatBytes(*available),
      " are available; --dry_run says what takes it. A smaller train.micro_batch_size, recompute "
      "or bf16 take less."));
}

absl::Status CheckMemory(const RunOptions& options, const RunPlan& plan, int ranks) {
  if (options.device == DeviceType::kCuda) {
    return CheckFits(plan.rank_bytes() / options.num_ranks() * ranks, FreeDeviceBytes(),
                     /*on_gpus=*/true);
  }
  return CheckFits(HostBytes(options, plan, ranks), AvailableHostBytes(), /*on_gpus=*/false);
}

}  // namespace megatron
