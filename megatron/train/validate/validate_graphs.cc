#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr absl::string_view kImpl = "system.cuda_graph_impl";

// A pass can be captured if the host sends none of its messages and decides nothing on the way.
void CheckPasses(ConfigChecker& check) {
  const config::PretrainConfig& config = check.resolved();
  const config::ParallelConfig& parallel = config.parallel();
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path}))
      check.Error(kImpl, absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
  };
  const bool host_sends = parallel.distributed_backend() == config::DistributedBackend::host;
  constexpr absl::string_view kHostSends =
      "the host sends messages (parallel.distributed_backend = host), and only NCCL's are captured";
  refuse(host_sends && parallel.tensor_model_parallel_size() > 1,
         "parallel.tensor_model_parallel_size", kHostSends);
  refuse(host_sends && parallel.context_parallel_size() > 1, "parallel.context_parallel_size",
         kHostSends);
  refuse(config.model().num_experts() > 0, "model.num_experts",
         "the host reads how many rows each expert gets");
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
