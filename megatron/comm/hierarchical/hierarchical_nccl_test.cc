// Hierarchical collectives of tensors on GPUs, over a NCCL that threads play: what goes between
// hosts runs on a stream of its own.
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator_conformance.h"
#include "megatron/comm/hierarchical/hierarchical_communicator.h"
#include "megatron/comm/nccl/fake_nccl.h"
#include "megatron/comm/nccl/nccl_communicator.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {
namespace {

absl::Status RunOnTwoHosts(int size, const ConformanceRank& rank) {
  FakeNccl fake;
  NcclWorldOptions options;
  options.compare_calls = options.sum_in_rank_order = true;
  ThreadWorld threads(size);
  return RunRanks(&threads, [&](int, const ProcessGroup& host) -> absl::Status {
    CudaStream cuda(0);
    MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<NcclWorld> world,
                              NcclWorld::Create(&fake, host.communicator(), options));
    std::vector<int> hosts;
    for (int i = 0; i < size; ++i) hosts.push_back(2 * i / size);
    MEGATRON_ASSIGN_OR_RETURN(
        const std::shared_ptr<Communicator> levels,
        Hierarchical(world->communicator(), hosts, HierarchicalOptions{256, 4096}));
    return rank(ProcessGroup(levels), Stream::Cuda(0, &cuda));
  });
}

INSTANTIATE_TEST_SUITE_P(HierarchicalOverNccl, CommunicatorConformanceTest,
                         ::testing::Values(ConformanceCase{RunOnTwoHosts, 4, 2}),
                         ConformanceCaseName);

}  // namespace
}  // namespace megatron
