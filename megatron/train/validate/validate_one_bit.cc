#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/validate/rules.h"

namespace megatron {

namespace {

constexpr absl::string_view kOptimizer = "optimizer.optimizer";

// Rules between the fields of one of these optimizers.
void CheckSteps(ConfigChecker& check) {
  constexpr absl::string_view kFreeze = "optimizer.freeze_step", kIterations = "train.train_iters",
                              kMin = "optimizer.factor_min", kMax = "optimizer.factor_max";
  const config::PretrainConfig& config = check.resolved();
  const config::OptimizerConfig& optimizer = config.optimizer();
  if (optimizer.optimizer() != config::Optimizer::zero_one_adam &&
      check.Usable({kFreeze, kIterations}) &&
      optimizer.freeze_step() >= config.train().train_iters()) {
    check.Error(kFreeze,
                absl::StrCat("must be less than ", check.Named(kIterations), ", or ",
                             config::Optimizer::Type_Name(optimizer.optimizer()),
                             " sends no signs: publications have 15 to 25 % of the steps"));
  }
  if (optimizer.optimizer() == config::Optimizer::onebit_lamb && check.Usable({kMin, kMax}) &&
      optimizer.factor_min() > optimizer.factor_max()) {
    check.Error(kMin, absl::StrCat("must be at most ", check.Named(kMax)));
  }
}

}  // namespace

void CheckOneBit(ConfigChecker& check) {
  const config::PretrainConfig& config = check.resolved();
  const config::Optimizer::Type optimizer = config.optimizer().optimizer();
  const bool is_zero_one = optimizer == config::Optimizer::zero_one_adam;
  if ((optimizer != config::Optimizer::onebit_adam && !is_zero_one &&
       optimizer != config::Optimizer::onebit_lamb) ||
      !check.Usable({kOptimizer})) {
    return;
  }
  CheckSteps(check);
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path})) {
      check.Error(kOptimizer,
                  absl::StrCat(config::Optimizer::Type_Name(optimizer), " cannot be used with ",
                               check.Named(path), ": ", because));
    }
  };
  const config::ParallelConfig& parallel = config.parallel();
  refuse(parallel.use_distributed_optimizer(), "parallel.use_distributed_optimizer",
         "each rank needs the whole momentum to send the signs of its own, and weights that are "
         "gathered would be more bytes than signs save");
  refuse(parallel.grad_reduce_in_bf16(), "parallel.grad_reduce_in_bf16",
         "signs are sent in place of gradients");
  refuse(parallel.communication_data_type() != config::CommunicationDataType::fp32,
         "parallel.communication_data_type", "signs are sent in place of gradients");
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
      "in steps with signs there is no gradient of the whole batch on any rank";
  refuse(config.logging().diagnostics_interval() > 0, "logging.diagnostics_interval", kNoWhole);
  refuse(config.logging().log_num_zeros_in_grad(), "logging.log_num_zeros_in_grad", kNoWhole);
  constexpr absl::string_view kRanksDiffer =
      "data-parallel ranks have weights of their own between synchronizations";
  refuse(is_zero_one && parallel.check_weight_hash_across_dp_replicas_interval() > 0,
         "parallel.check_weight_hash_across_dp_replicas_interval", kRanksDiffer);
  refuse(is_zero_one && config.optimizer().qk_clip(), "optimizer.qk_clip", kRanksDiffer);
  refuse(is_zero_one && config.optimizer().has_decoupled_lr(), "optimizer.decoupled_lr",
         "momentum is made of steps over one sum of learning rates");
  if (optimizer != config::Optimizer::onebit_lamb) return;
  refuse(!check.IsDefault("parallel.tensor_parallel_mode"), "parallel.tensor_parallel_mode",
         "its norms are those of tensors that are cut along one dim at most");
  refuse(check.Usable({"model.num_query_groups"}) &&
             parallel.tensor_model_parallel_size() > config.model().num_query_groups(),
         "parallel.tensor_model_parallel_size",
         "with more ranks than model.num_query_groups, queries have another ratio than keys and "
         "values, which are one tensor with them elsewhere");
}

}  // namespace megatron
