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
  constexpr absl::string_view kType = "gradient_compression.type";
  if (ranks == 1) {
    check.HaveNoEffect({kType}, "with one data-parallel rank, which sends no gradients");
    return;
  }
  const config::GradientCompressionConfig& config = check.resolved().gradient_compression();
  const auto check_density = [&](absl::string_view path, double density) {
    if (!check.Usable({path}) || density * static_cast<double>(ranks) <= 1) return;
    check.Error(path, absl::StrCat("sends more bytes than gradients have: it must be at most ",
                                   1.0 / static_cast<double>(ranks), " with ", ranks,
                                   " ranks that send each other gradients"));
  };
  if (config.type() == config::GradientCompression::topk)
    check_density("gradient_compression.density", config.density());
  if (config.type() == config::GradientCompression::threshold)
    check_density("gradient_compression.max_density", config.max_density());
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
  constexpr absl::string_view kThreshold = "gradient_compression.threshold";
  if (type == config::GradientCompression::threshold && !check.IsWritten(kThreshold)) {
    check.Error(kThreshold, absl::StrCat("is required with ", check.Named(kType),
                                         ": a magnitude of gradients; the metric sent-gradients "
                                         "tells how many are above it"));
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
  refuse(parallel.outer_dp_sharding_strategy() == config::OuterSharding::optim,
         "parallel.outer_dp_sharding_strategy", "instances then have parts of sums alone");
  refuse(parallel.grad_reduce_in_bf16(), "parallel.grad_reduce_in_bf16",
         "gradients are rounded once, by one of the two");
  refuse(parallel.communication_data_type() != config::CommunicationDataType::fp32,
         "parallel.communication_data_type", "gradients are rounded once, by one of the two");
  refuse(config.precision().fp16(), "precision.fp16",
         "errors that wait for the next step would be in units of a loss scale that changes");
  refuse(config.diloco().sync_every() > 0, "diloco.sync_every",
         "islands send no gradients; diloco.outer_gradient_dtype rounds what they send");
  refuse(config.train().auto_layout(), "train.auto_layout",
         "it chooses the number of ranks that send gradients, and their number changes results");
  refuse(
      type != config::GradientCompression::int8 && config.system().device() == config::Device::cuda,
      kDevice, "it has no kernels for GPUs; int8 has");
}

void CheckSparseGradients(ConfigChecker& check) {
  constexpr absl::string_view kSparse = "parallel.sparse_gradients";
  const config::PretrainConfig& config = check.resolved();
  const config::ParallelConfig& parallel = config.parallel();
  if (!parallel.sparse_gradients() || !check.Usable({kSparse})) return;
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path}))
      check.Error(kSparse, absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
  };
  refuse(parallel.use_distributed_optimizer() &&
             parallel.data_parallel_sharding_strategy() != config::DataParallelSharding::optim,
         "parallel.data_parallel_sharding_strategy",
         "gradients that are sharded are summed in each micro-batch; optim sums once a step");
  refuse(parallel.num_distributed_optimizer_instances() > 1,
         "parallel.num_distributed_optimizer_instances", "instances sum shards, which cut rows");
  refuse(parallel.ddp_bucket_size() > 0, "parallel.ddp_bucket_size",
         "the word table would be in one message with other blocks");
  refuse(!check.IsDefault("parallel.tensor_parallel_mode"), "parallel.tensor_parallel_mode",
         "its tables are cut along both dims");
  constexpr absl::string_view kFloats = "rows are sent in fp32";
  refuse(parallel.grad_reduce_in_bf16(), "parallel.grad_reduce_in_bf16", kFloats);
  refuse(parallel.communication_data_type() != config::CommunicationDataType::fp32,
         "parallel.communication_data_type", kFloats);
  refuse(config.gradient_compression().type() != config::GradientCompression::none,
         "gradient_compression.type", "the word table is sent in one of the two ways");
  const config::Optimizer::Type optimizer = config.optimizer().optimizer();
  refuse(optimizer == config::Optimizer::onebit_adam ||
             optimizer == config::Optimizer::zero_one_adam ||
             optimizer == config::Optimizer::onebit_lamb,
         "optimizer.optimizer", "it sends signs of momentum in place of gradients");
  refuse(config.train().auto_layout(), "train.auto_layout",
         "it chooses whether gradients are sharded");
  refuse(config.system().device() == config::Device::cuda, "system.device",
         "there are no kernels for GPUs");
}

}  // namespace megatron
