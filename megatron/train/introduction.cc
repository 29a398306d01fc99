#include "megatron/train/introduction.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/quantity.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cuda/cudnn/cudnn_kernels.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/trainer/flops.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {
namespace {

// Advice on what would be faster on this machine. Ranks that share cores or a GPU take turns, and
// send each other what one of them would have at hand.
std::vector<std::string> Advice(const RunOptions& options, int ranks) {
  std::vector<std::string> lines;
  const int cores = AvailableCores();
  if (options.num_threads > cores) {
    lines.push_back(
        absl::StrFormat("WARNING: system.num_threads = %d on %s: threads will wait for each other",
                        options.num_threads, FormatQuantity(cores, "core")));
  }
  if (ranks > cores && ranks > 1) {
    lines.push_back(absl::StrFormat("WARNING: %d ranks share %s: fewer ranks are faster here",
                                    ranks, FormatQuantity(cores, "core")));
  }
  const int devices = CudaDeviceCount();
  const ParallelSizes& sizes = options.parallel;
  if (options.device == DeviceType::kCuda && ranks > devices) {
    const bool cut = sizes.tensor * sizes.pipeline > 1;
    lines.push_back(absl::StrFormat("WARNING: %d ranks share %s: %s faster here", ranks,
                                    FormatQuantity(devices, "GPU"),
                                    cut ? "tensor 1 x pipeline 1 is" : "fewer ranks are"));
  }
  return lines;
}

std::string DescribeDevice(const PretrainRun& run, int ranks) {
  const RunOptions& options = run.options();
  const std::string all =
      options.num_ranks() == 1
          ? "1 rank"
          : absl::StrCat(options.num_ranks(), " ranks = ", DescribeSizes(options.parallel));
  if (options.device == DeviceType::kCuda) {
    const std::string& links = run.links.text;
    return absl::StrFormat("device: %d x %s; %s%s%s", std::min(CudaDeviceCount(), ranks),
                           CudaFacts(0).name, all, links.empty() ? "" : ", ", links);
  }
  return absl::StrFormat("device: cpu (%s), %s; %s", ops::IsaName(),
                         FormatQuantity(ranks * run.threads_per_rank, "thread"), all);
}

std::string DescribeAttention(ops::AttentionKernel kernel) {
  return absl::StrCat("attention: cuDNN ", ops::cuda::CudnnVersion().value_or("is not here"),
                      kernel == ops::AttentionKernel::kCudnnDeterministic
                          ? ", deterministic"
                          : "; two runs may differ in their last bits");
}

// Names the types of weights and of their products.
std::string DescribePrecision(const TransformerOptions& transformer) {
  const Float8Options& float8 = transformer.float8;
  if (!float8.enabled) return Name(transformer.dtype);
  return absl::StrCat(Name(transformer.dtype), " with products in FP8, gradients in ",
                      Name(float8.gradient));
}

std::string DescribeModel(const config::ModelConfig& config, const RunOptions& options) {
  const ModelOptions& model = options.trainer.model;
  const TransformerOptions& transformer = model.transformer;
  const int64_t encoder_layers = model.num_encoder_layers;
  return absl::StrFormat(
      "model: %s of %s%d layers, hidden %d, %d heads, sequence %s%d, %s: %s parameters",
      absl::AsciiStrToUpper(config::ModelType::Type_Name(config.model_type())),
      encoder_layers > 0 ? absl::StrCat(encoder_layers, " + ") : "", transformer.num_layers,
      transformer.hidden_size, transformer.num_attention_heads,
      encoder_layers > 0 ? absl::StrCat(options.trainer.packing.encoder_seq_length, " + ") : "",
      options.trainer.packing.seq_length, DescribePrecision(transformer),
      FormatCount(CountParameters(config, model.padded_vocab_size)));
}

}  // namespace

std::vector<std::string> Introduce(const config::PretrainConfig& config, const PretrainRun& run,
                                   const RanksOfMachine& here) {
  const RunOptions& options = run.options();
  std::vector<std::string> lines = Advice(options, here.ranks);
  if (!here.launch.empty()) {
    lines.push_back(absl::StrCat("ranks are processes; this is ", here.launch));
  }
  lines.push_back(DescribeDevice(run, here.ranks));
  const ops::AttentionKernel kernel = options.trainer.model.transformer.attention_kernel;
  if (kernel == ops::AttentionKernel::kCudnn || kernel == ops::AttentionKernel::kCudnnDeterministic)
    lines.push_back(DescribeAttention(kernel));
  lines.push_back(DescribeModel(config.model(), options));
  lines.push_back(absl::StrCat("data: ", run.training.data.description));
  lines.push_back(absl::StrFormat(
      "memory: %s planned on this machine, %s for weights, gradients, optimizer and activations of "
      "all ranks",
      FormatBytes(here.bytes), FormatBytes(run.plan.rank_bytes())));
  const std::string& save = options.checkpoint.save;
  lines.push_back(absl::StrFormat(
      "training: %s of %s, checkpoints %s", FormatQuantity(options.loop.train_iters, "iteration"),
      FormatQuantity(options.trainer.batch_size.global_batch_size, "sample"),
      save.empty() ? "off (set checkpoint.save)" : "in " + save));
  return lines;
}

}  // namespace megatron
