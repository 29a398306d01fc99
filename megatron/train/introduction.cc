#include "megatron/train/introduction.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/quantity.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/optim/batch_size_schedule.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/attention/choose_attention.h"
#include "megatron/train/preflight/describe_run.h"
#include "megatron/train/trainer/flops.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/run_plan.h"

namespace megatron {
namespace {

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

// Names the kernels in the order in which they are tried, and those that are not among them.
std::string DescribeAttention(const AttentionChoice& choice) {
  std::string line = absl::StrCat("attention: ", choice.order);
  if (choice.kernels.Has(ops::AttentionKernel::kCudnn))
    absl::StrAppend(&line, "; with cuDNN's gradients two runs may differ in their last bits");
  for (const std::string& why : choice.left_out) absl::StrAppend(&line, "; not ", why);
  return line;
}

// "8 samples", or "2 to 8 samples" where the batches of a run of so many iterations grow.
std::string DescribeBatches(const BatchSizeOptions& sizes, int64_t iterations) {
  if (sizes.steps.empty()) return FormatQuantity(sizes.global_batch_size, "sample");
  const int64_t first = sizes.steps[0].size;
  int64_t last = first, consumed = 0;
  for (size_t i = 0; i < sizes.steps.size() && iterations > 0; ++i) {
    last = sizes.steps[i].size;
    if (i + 1 == sizes.steps.size()) break;
    // A batch begins before the next step, and may end behind it.
    const int64_t left = std::max<int64_t>(sizes.steps[i + 1].samples - consumed, 0);
    const int64_t count = (left + last - 1) / last;
    iterations -= count;
    consumed += count * last;
  }
  const std::string range = FormatQuantity(last, "sample");
  return first == last ? range : absl::StrCat(first, " to ", range);
}

}  // namespace

std::vector<std::string> Introduce(const config::PretrainConfig& config, const PretrainRun& run,
                                   const RanksOfMachine& here) {
  const RunOptions& options = run.options();
  std::vector<std::string> lines;
  for (const std::string& advice : AdviceFor(options, here.ranks))
    lines.push_back(absl::StrCat("WARNING: ", advice));
  if (!here.launch.empty()) {
    lines.push_back(absl::StrCat("ranks are processes; this is ", here.launch));
  }
  if (run.user.has_launcher && options.ranks.restarts > 0) {
    lines.push_back(
        "WARNING: parallel.restarts does nothing where a launcher has started the ranks");
  }
  if (here.restarts > 0) {
    lines.push_back(absl::StrCat("restart ", here.restarts, here.restart_reason.empty() ? "" : ": ",
                                 here.restart_reason));
  }
  lines.push_back(DescribeDevice(run, here.ranks));
  lines.insert(lines.end(), run.layout.begin(), run.layout.end());
  if (!run.rank_order.empty()) lines.push_back(absl::StrCat("rank order: ", run.rank_order));
  if (!run.offload.empty()) lines.push_back(absl::StrCat("offload: ", run.offload));
  if (!run.attention.order.empty()) lines.push_back(DescribeAttention(run.attention));
  if (!run.products.empty()) lines.push_back(absl::StrCat("products: ", run.products));
  const int64_t vocab_size = options.trainer.model.padded_vocab_size;
  lines.push_back(absl::StrCat("model: ", DescribeModel(config.model(), options), ": ",
                               FormatCount(CountParameters(config.model(), vocab_size)),
                               " parameters"));
  lines.push_back(absl::StrCat("data: ", run.training.data.description));
  const int64_t host = run.plan.host_bytes(options.num_ranks());
  lines.push_back(absl::StrFormat(
      "memory: %s planned on this machine, %s for weights, gradients, optimizer and activations of "
      "all ranks%s",
      FormatBytes(here.bytes), FormatBytes(run.plan.rank_bytes()),
      host > 0 ? absl::StrCat(", and ", FormatBytes(host), " on the host") : ""));
  const std::string& save = options.checkpoint.save;
  lines.push_back(absl::StrFormat(
      "training: %s of %s, checkpoints %s", FormatQuantity(options.loop.train_iters, "iteration"),
      DescribeBatches(options.trainer.batch_size, options.loop.train_iters),
      save.empty() ? "off (set checkpoint.save)" : "in " + save));
  return lines;
}

}  // namespace megatron
