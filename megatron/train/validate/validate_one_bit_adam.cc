#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/validate/rules.h"

namespace megatron {

void CheckOneBitAdam(ConfigChecker& check) {
  constexpr absl::string_view kOptimizer = "optimizer.optimizer", kFreeze = "optimizer.freeze_step",
                              kIterations = "train.train_iters";
  const config::PretrainConfig& config = check.resolved();
  if (config.optimizer().optimizer() != config::Optimizer::onebit_adam ||
      !check.Usable({kOptimizer})) {
    return;
  }
  if (check.Usable({kFreeze, kIterations}) &&
      config.optimizer().freeze_step() >= config.train().train_iters()) {
    check.Error(kFreeze,
                absl::StrCat("must be less than ", check.Named(kIterations),
                             ", or 1-bit Adam sends no signs: publications have 15 to 25 % "
                             "of the steps"));
  }
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path})) {
      check.Error(kOptimizer, absl::StrCat("onebit_adam cannot be used with ", check.Named(path),
                                           ": ", because));
    }
  };
  const config::ParallelConfig& parallel = config.parallel();
  refuse(parallel.use_distributed_optimizer(), "parallel.use_distributed_optimizer",
         "each rank needs the whole momentum to send the signs of its own, and weights that are "
         "gathered would be more bytes than signs save");
  refuse(parallel.grad_reduce_in_bf16(), "parallel.grad_reduce_in_bf16",
         "gradients are not summed after optimizer.freeze_step");
  refuse(parallel.communication_data_type() != config::CommunicationDataType::fp32,
         "parallel.communication_data_type",
         "gradients are not summed after optimizer.freeze_step");
  refuse(config.optimizer().optimizer_cpu_offload(), "optimizer.optimizer_cpu_offload",
         "momentum is averaged where gradients are");
  refuse(config.gradient_compression().type() != config::GradientCompression::none,
         "gradient_compression.type", "it sends signs of momentum in place of gradients");
  refuse(config.diloco().sync_every() > 0, "diloco.sync_every",
         "islands average weights, and no momentum");
  refuse(config.model().has_num_experts(), "model.num_experts",
         "experts lie on other ranks than the rest");
  refuse(config.system().device() == config::Device::cuda, "system.device",
         "it has no kernels for GPUs");
  refuse(config.train().auto_layout(), "train.auto_layout",
         "it chooses the number of ranks that send signs, and their number changes results");
  constexpr absl::string_view kNoWhole =
      "after optimizer.freeze_step there is no gradient of the whole batch on any rank";
  refuse(config.logging().diagnostics_interval() > 0, "logging.diagnostics_interval", kNoWhole);
  refuse(config.logging().log_num_zeros_in_grad(), "logging.log_num_zeros_in_grad", kNoWhole);
}

}  // namespace megatron
