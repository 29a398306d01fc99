#include "megatron/train/attention/choose_attention.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "megatron/train/attention/attention_limits.h"
#include "megatron/train/config/config_paths.h"

namespace megatron {
namespace {

using Backend = config::AttentionBackend::Type;
constexpr Backend kFlash = config::AttentionBackend::flash;
constexpr Backend kFused = config::AttentionBackend::fused;
constexpr Backend kLocal = config::AttentionBackend::local;

// Returns the backends to try, the most wanted first.
std::vector<Backend> Wanted(const RunOptions& options, const AttentionDevice& device,
                            const train::AttentionPlanFile& plans) {
  const Backend backend = options.attention.backend;
  if (backend != config::AttentionBackend::auto_) return {backend};
  std::vector<Backend> order =
      OrderInFile(plans, device.gpu, options.trainer.model.transformer.kv_channels);
  return order.empty() ? std::vector<Backend>{kFlash, kFused} : order;
}

// Returns why a backend is left out; empty if it is not.
std::string WhyNot(Backend backend, const config::PretrainConfig& config,
                   const AttentionDevice& device) {
  if (backend == kFlash && !device.flash)
    return "no GPU of compute capability 9.0, or no code for it, is here";
  if (backend == kFused && device.cudnn.empty()) return "cuDNN is not here";
  const std::vector<AttentionLimit> limits = LimitsOf(backend, config);
  if (limits.empty()) return "";
  if (limits[0].field.empty()) return limits[0].why;
  return absl::StrCat(limits[0].why, " (", limits[0].field, " = ",
                      ValueText(Resolve(config, limits[0].field)), ")");
}

ops::AttentionKernel KernelOf(Backend backend, bool deterministic) {
  if (backend == kFlash) return ops::AttentionKernel::kHopper;
  if (backend != kFused) return ops::AttentionKernel::kOwn;
  return deterministic ? ops::AttentionKernel::kCudnnDeterministic : ops::AttentionKernel::kCudnn;
}

}  // namespace

AttentionChoice ChooseAttention(const config::PretrainConfig& config, const RunOptions& options,
                                const AttentionDevice& device,
                                const train::AttentionPlanFile& plans) {
  AttentionChoice choice;
  std::vector<ops::AttentionKernel> kernels;
  std::vector<std::string> names;
  for (Backend backend : Wanted(options, device, plans)) {
    if (backend == kLocal) break;  // it takes every call
    const std::string& name = config::AttentionBackend::Type_Name(backend);
    const std::string why = WhyNot(backend, config, device);
    if (!why.empty()) {
      choice.left_out.push_back(absl::StrCat(name, ": ", why));
      continue;
    }
    kernels.push_back(KernelOf(backend, options.deterministic));
    names.push_back(name);
    if (backend != kFused) continue;
    absl::StrAppend(&names.back(), " ", device.cudnn,
                    options.deterministic ? " deterministic" : "");
  }
  names.push_back(config::AttentionBackend::Type_Name(kLocal));
  choice.order = absl::StrJoin(names, ", ");
  if (!kernels.empty()) choice.kernels.first = kernels[0];
  if (kernels.size() > 1) choice.kernels.second = kernels[1];
  return choice;
}

}  // namespace megatron
