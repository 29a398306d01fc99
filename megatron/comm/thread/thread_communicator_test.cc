#include "megatron/comm/thread/thread_communicator.h"

#include <functional>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/communicator_conformance.h"
#include "megatron/comm/communicator_failure_conformance.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

absl::Status RunOnThreads(int size, const ConformanceRank& fn) {
  return RunRanks(size, [&](int rank, const ProcessGroup& world) {
    ThreadPool pool(2);
    return fn(world, Stream::Cpu(&pool));
  });
}

absl::Status RunWithDeadline(
    int size, const std::function<absl::Status(int rank, const ProcessGroup& world)>& fn,
    absl::Duration deadline) {
  return RunRanks(size, fn, {deadline});
}

INSTANTIATE_TEST_SUITE_P(Thread, CommunicatorConformanceTest,
                         ::testing::ValuesIn(ConformanceCases(RunOnThreads)), ConformanceCaseName);
INSTANTIATE_TEST_SUITE_P(Thread, CommunicatorFailureConformanceTest,
                         ::testing::Values(RunWithDeadline));

}  // namespace
}  // namespace megatron
