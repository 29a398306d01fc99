#include "megatron/train/preflight/describe_run.h"

#include <sys/sysinfo.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/quantity.h"
#include "megatron/base/thread_pool.h"
#include "megatron/optim/rules/update_rule.h"
#include "megatron/optim/rules/zero_one_schedule.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {
namespace {

// Names the types of weights and of their products.
std::string DescribePrecision(const TransformerOptions& transformer) {
  const Float8Options& float8 = transformer.float8;
  if (!float8.enabled) return Name(transformer.dtype);
  const char* const recipe = float8.recipe == Float8Recipe::kDelayed     ? " (delayed)"
                             : float8.recipe == Float8Recipe::kBlockwise ? " (blockwise)"
                                                                         : "";
  return absl::StrCat(Name(transformer.dtype), " with products in FP8", recipe, ", gradients in ",
                      Name(float8.gradient));
}

// Says what of 0/1 Adam a run of so many steps does not do; empty if nothing. Skipped steps shift
// the schedule, and are not foreseen.
std::string AdviceForLocalSteps(const ZeroOneSchedule& schedule, int64_t steps) {
  if (schedule.var_freeze_step >= steps) {
    return absl::StrFormat(
        "optimizer.var_freeze_step = %d is not reached in %s: ranks of 0/1 Adam take no local "
        "steps",
        schedule.var_freeze_step, FormatQuantity(steps, "iteration"));
  }
  int64_t local = 0;
  while (local < steps && schedule.StepAfter(steps - local - 1) == RankStep::kLocal) ++local;
  if (local == 0) return "";
  return absl::StrFormat(
      "the last %s of 0/1 Adam %s local, and no part of the weights that the run ends with: let "
      "train.train_iters be a multiple of optimizer.local_step_clipper = %d",
      FormatQuantity(local, "step"), local == 1 ? "is" : "are", schedule.local_step_clipper);
}

// Adds the fields that tell layers apart and leave all of them alike.
void AdviseOnLayers(const TransformerOptions& transformer, std::vector<std::string>* lines) {
  bool one_is_still = false, one_sees_all = false;
  for (int64_t i = 0; i < transformer.num_layers; ++i) {
    if (!transformer.HasAttention(i)) continue;
    one_is_still |= !transformer.Rotates(i);
    one_sees_all |= !transformer.HasWindow(i);
  }
  if (!transformer.rotary_layers.empty() && !one_is_still)
    lines->push_back("model.no_rope_freq does nothing: all layers with attention rotate");
  if (!transformer.window_layers.empty() && !one_sees_all) {
    lines->push_back(
        "model.window_attn_skip_freq does nothing: all layers with attention see the window");
  }
}

}  // namespace

std::string DescribeModel(const config::ModelConfig& config, const RunOptions& options) {
  const ModelOptions& model = options.trainer.model;
  const TransformerOptions& transformer = model.transformer;
  const int64_t encoder_layers = model.num_encoder_layers;
  return absl::StrFormat(
      "%s of %s%d layers, hidden %d, %d heads, sequence %s%d, %s",
      absl::AsciiStrToUpper(config::ModelType::Type_Name(config.model_type())),
      encoder_layers > 0 ? absl::StrCat(encoder_layers, " + ") : "", transformer.num_layers,
      transformer.hidden_size, transformer.num_attention_heads,
      encoder_layers > 0 ? absl::StrCat(options.trainer.packing.encoder_seq_length, " + ") : "",
      options.trainer.packing.seq_length, DescribePrecision(transformer));
}

// Ranks that share cores or a GPU take turns, and send each other what one of them would have at
// hand.
std::vector<std::string> AdviceFor(const RunOptions& options, int ranks) {
  std::vector<std::string> lines;
  const int cores = AvailableCores();
  if (options.num_threads > cores) {
    lines.push_back(
        absl::StrFormat("system.num_threads = %d on %s: threads will wait for each other",
                        options.num_threads, FormatQuantity(cores, "core")));
  }
  // Processes may each be bound to cores of their own.
  const int shared = options.ranks.processes ? std::max(cores, get_nprocs()) : cores;
  if (ranks > shared && ranks > 1) {
    lines.push_back(absl::StrFormat("%d ranks share %s: fewer ranks are faster here", ranks,
                                    FormatQuantity(shared, "core")));
  }
  if (options.trainer.model.transformer.lora.dim > 0 &&
      options.checkpoint.load == options.checkpoint.save) {
    lines.push_back(
        "model.lora without checkpoint.load: a run that begins trains adapters beside random "
        "weights, which are frozen");
  }
  const bool delays = options.trainer.optimizer.delayed_gradients.has_value();
  if (options.device != DeviceType::kCuda && delays) {
    lines.push_back(
        "optimizer.delayed_update hides nothing on the CPU: updates come one step late, as on a "
        "GPU");
  }
  if (options.device != DeviceType::kCuda && options.trainer.host_fraction > 0 &&
      options.trainer.state_directory.empty() && !delays) {
    lines.push_back(
        "optimizer.optimizer_cpu_offload does nothing on the CPU, whose memory is the host's");
  }
  if (options.device != DeviceType::kCuda && options.trainer.gradients_on_host) {
    lines.push_back(
        "parallel.grad_cpu_offload does nothing on the CPU, whose memory is the host's");
  }
  if (options.device != DeviceType::kCuda && options.trainer.weights_on_host) {
    lines.push_back(
        "parallel.param_cpu_offload does nothing on the CPU, whose memory is the host's");
  }
  if (options.device != DeviceType::kCuda && options.trainer.model.num_offloaded_layers > 0) {
    lines.push_back(
        "recompute.cpu_offloading_num_layers does nothing on the CPU, whose memory is the host's, "
        "nor does recompute.cpu_offloading_auto");
  }
  if (options.device != DeviceType::kCuda && options.trainer.model.attention_on_host) {
    lines.push_back(
        "recompute.attention_chunks_on_host does nothing on the CPU, whose memory is the host's");
  }
  const int64_t window = options.trainer.model.transformer.window_size;
  const int64_t length = options.trainer.packing.seq_length;
  if (window > 0 && window >= length - 1) {
    lines.push_back(absl::StrFormat(
        "model.window_size = %d does nothing in training: samples of model.seq_length = %d tokens "
        "lie in the window",
        window, length));
  }
  AdviseOnLayers(options.trainer.model.transformer, &lines);
  if (options.trainer.optimizer.kind == OptimizerOptions::kZeroOneAdam) {
    const std::string advice =
        AdviceForLocalSteps(options.trainer.optimizer.zero_one, options.loop.train_iters);
    if (!advice.empty()) lines.push_back(advice);
  }
  const int devices = CudaDeviceCount();
  const ParallelSizes& sizes = options.parallel;
  if (options.device == DeviceType::kCuda && ranks > devices) {
    const bool cut = sizes.tensor * sizes.pipeline > 1;
    lines.push_back(absl::StrFormat("%d ranks share %s: %s faster here", ranks,
                                    FormatQuantity(devices, "GPU"),
                                    cut ? "tensor 1 x pipeline 1 is" : "fewer ranks are"));
  }
  return lines;
}

}  // namespace megatron
