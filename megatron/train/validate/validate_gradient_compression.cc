#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

// Checks that so many ranks, or instances, send each other gradients, and fewer bytes than plain
// sums have: a place and an element to all others, in place of twice an element of 4 bytes.
void CheckRanksThatSend(int64_t ranks, ConfigChecker& check) {
  constexpr absl::string_view kType = "gradient_compression.type",
                              kDensity = "gradient_compression.density";
  if (ranks == 1) {
    check.HaveNoEffect({kType}, "with one data-parallel rank, which sends no gradients");
    return;
  }
  const config::GradientCompressionConfig& config = check.resolved().gradient_compression();
  if (config.type() == config::GradientCompression::topk && check.Usable({kDensity}) &&
      config.density() * static_cast<double>(ranks) > 1) {
    check.Error(kDensity, absl::StrCat("sends more bytes than gradients have: it must be at most ",
                                       1.0 / static_cast<double>(ranks), " with ", ranks,
                                       " ranks that send each other gradients"));
  }
}

}  // namespace

void CheckGradientCompression(ConfigChecker& check) {
  constexpr absl::string_view kType = "gradient_compression.type";
  const config::PretrainConfig& config = check.resolved();
  const config::GradientCompression::Type type = config.gradient_compression().type();
  if (type == config::GradientCompression::none || !check.Usable({kType})) return;
  const config::ParallelConfig& parallel = config.parallel();
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path}))
      check.Error(kType, absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
  };
  constexpr absl::string_view kData = "parallel.data_parallel_size",
                              kContext = "parallel.context_parallel_size",
                              kInstances = "parallel.num_distributed_optimizer_instances",
                              kStrategy = "parallel.data_parallel_sharding_strategy",
                              kDevice = "system.device";
  const bool has_instances = parallel.num_distributed_optimizer_instances() > 1;
  if (check.Usable({kData, kContext, kInstances})) {
    const int64_t ranks = has_instances
                              ? parallel.num_distributed_optimizer_instances()
                              : parallel.data_parallel_size() * parallel.context_parallel_size();
    CheckRanksThatSend(ranks, check);
  }
  constexpr absl::string_view kStart = "gradient_compression.start_iteration",
                              kIterations = "train.train_iters";
  if (check.Usable({kStart, kIterations}) &&
      config.gradient_compression().start_iteration() >= config.train().train_iters()) {
    check.Error(kStart, absl::StrCat("must be less than ", check.Named(kIterations),
                                     ", or no gradient is compressed"));
  }
  refuse(
      !has_instances && parallel.use_distributed_optimizer() &&
          parallel.data_parallel_sharding_strategy() != config::DataParallelSharding::optim,
      kStrategy,
      "gradients that are sharded are summed in each micro-batch; optim sums once a step, and so "
      "do several parallel.num_distributed_optimizer_instances between each other");
  const bool is_powersgd = type == config::GradientCompression::powersgd;
  refuse(has_instances && is_powersgd, kInstances,
         "instances sum shards, which cut matrices; int8 and topk sum shards");
  refuse(parallel.outer_dp_sharding_strategy() == config::OuterSharding::optim,
         "parallel.outer_dp_sharding_strategy", "instances then have parts of sums alone");
  refuse(parallel.grad_reduce_in_bf16(), "parallel.grad_reduce_in_bf16",
         "gradients are rounded once, by one of the two");
  refuse(config.precision().fp16(), "precision.fp16",
         "errors that wait for the next step would be in units of a loss scale that changes");
  refuse(config.diloco().sync_every() > 0, "diloco.sync_every",
         "islands send no gradients; diloco.outer_gradient_dtype rounds what they send");
  refuse(config.train().auto_layout(), "train.auto_layout",
         "it chooses the number of ranks that send gradients, and their number changes results");
  refuse((is_powersgd || type == config::GradientCompression::topk) &&
             config.system().device() == config::Device::cuda,
         kDevice, "it has no kernels for GPUs; int8 has");
}

}  // namespace megatron
