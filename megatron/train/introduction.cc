#include "megatron/train/introduction.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/attention/choose_attention.h"
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
    lines.push_back(absl::StrFormat(
        "WARNING: system.num_threads = %d on %d cores: threads will wait for each other",
        options.num_threads, cores));
  }
  if (ranks > cores && ranks > 1) {
    lines.push_back(absl::StrFormat("WARNING: %d ranks share %d cores: fewer ranks are faster here",
                                    ranks, cores));
  }
  const int devices = CudaDeviceCount();
  const ParallelSizes& sizes = options.parallel;
  if (options.device == DeviceType::kCuda && ranks > devices) {
    const bool cut = sizes.tensor * sizes.pipeline > 1;
    lines.push_back(absl::StrFormat("WARNING: %d ranks share %d GPU%s: %s faster here", ranks,
                                    devices, devices == 1 ? "" : "s",
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
  return absl::StrFormat("device: cpu (%s), %d threads; %s", ops::IsaName(),
                         ranks * run.threads_per_rank, all);
}

// Names the kernels in the order in which they are tried, and those that are not among them.
std::string DescribeAttention(const AttentionChoice& choice) {
  std::string line = absl::StrCat("attention: ", choice.order);
  if (choice.kernels.Has(ops::AttentionKernel::kCudnn))
    absl::StrAppend(&line, "; with cuDNN's gradients two runs may differ in their last bits");
  for (const std::string& why : choice.left_out) absl::StrAppend(&line, "; not ", why);
  return line;
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
  if (!run.attention.order.empty()) lines.push_back(DescribeAttention(run.attention));
  lines.push_back(DescribeModel(config.model(), options));
  lines.push_back(absl::StrCat("data: ", run.training.data.description));
  lines.push_back(absl::StrFormat(
      "memory: %s planned on this machine, %s for weights, gradients, optimizer and activations of "
      "all ranks",
      FormatBytes(here.bytes), FormatBytes(run.plan.rank_bytes())));
  const std::string& save = options.checkpoint.save;
  lines.push_back(absl::StrFormat("training: %d iterations of %d samples, checkpoints %s",
                                  options.loop.train_iters,
                                  options.trainer.batch_size.global_batch_size,
                                  save.empty() ? "off (set checkpoint.save)" : "in " + save));
  return lines;
}

}  // namespace megatron
