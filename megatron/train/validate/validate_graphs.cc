#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/router_balance.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr absl::string_view kImpl = "system.cuda_graph_impl";
constexpr absl::string_view kHostSends =
    "the host sends messages (parallel.distributed_backend = host), and only NCCL's are captured";

void Refuse(ConfigChecker& check, absl::string_view path, absl::string_view because) {
  if (check.Usable({path}))
    check.Error(kImpl, absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
}

// The host may neither read how many rows an expert gets, nor count micro-batches. Ranks that send
// each other rows must capture the same passes: NCCL demands it.
void CheckExpertPasses(ConfigChecker& check) {
  const config::PretrainConfig& config = check.resolved();
  const config::ParallelConfig& parallel = config.parallel();
  if (config.model().num_experts() == 0) return;
  if (!config.model().moe_pad_expert_input_to_capacity()) {
    Refuse(check, "model.num_experts",
           "the host reads how many rows each expert gets, unless "
           "model.moe_pad_expert_input_to_capacity fixes that");
    return;
  }
  if (HasRouterBalance(config.model(), config::RouterLoadBalancing::global_aux_loss)) {
    Refuse(check, "model.moe_router_load_balancing_type",
           "the host counts the step's micro-batches for global_aux_loss");
  }
  const int64_t experts = parallel.expert_model_parallel_size(),
                parts = parallel.expert_tensor_parallel_size();
  // Rows go to the ranks of tensor parallelism alone, or to no other rank.
  if (experts == 1 && (parts == 1 || parts == parallel.tensor_model_parallel_size())) return;
  if (parallel.distributed_backend() == config::DistributedBackend::host) {
    if (experts > 1) Refuse(check, "parallel.expert_model_parallel_size", kHostSends);
    if (parts > 1) Refuse(check, "parallel.expert_tensor_parallel_size", kHostSends);
  }
  if (parallel.data_parallel_size() == 1) return;
  constexpr absl::string_view kSequences =
      "ranks that send rows to each other's experts have other samples, of other numbers of "
      "sequences, and would not capture the same passes";
  if (config.data().reset_attention_mask()) Refuse(check, "data.reset_attention_mask", kSequences);
  if (config.data().sft()) Refuse(check, "data.sft", kSequences);
}

// A pass can be captured if the host sends none of its messages and decides nothing on the way.
void CheckPasses(ConfigChecker& check) {
  const config::PretrainConfig& config = check.resolved();
  const config::ParallelConfig& parallel = config.parallel();
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken) Refuse(check, path, because);
  };
  const bool host_sends = parallel.distributed_backend() == config::DistributedBackend::host;
  refuse(host_sends && parallel.tensor_model_parallel_size() > 1,
         "parallel.tensor_model_parallel_size", kHostSends);
  refuse(host_sends && parallel.context_parallel_size() > 1, "parallel.context_parallel_size",
         kHostSends);
  CheckExpertPasses(check);
  constexpr absl::string_view kOverlaps = "what another stream does meanwhile is not captured";
  refuse(parallel.overlap_grad_reduce(), "parallel.overlap_grad_reduce", kOverlaps);
  refuse(parallel.overlap_param_gather(), "parallel.overlap_param_gather", kOverlaps);
  refuse(parallel.data_parallel_size() > 1 && parallel.use_distributed_optimizer() &&
             parallel.data_parallel_sharding_strategy() != config::DataParallelSharding::optim,
         "parallel.data_parallel_sharding_strategy",
         "gradients and weights that are shared out lie elsewhere in each pass");
}

}  // namespace

void CheckCudaGraphs(ConfigChecker& check) {
  const config::SystemConfig& system = check.resolved().system();
  const bool on_cpu = system.has_device() && system.device() == config::Device::cpu;
  if (!on_cpu && system.cuda_graph_impl() != config::CudaGraphImpl::none) CheckPasses(check);
}

}  // namespace megatron
