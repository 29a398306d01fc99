// The tests of what every Communicator whose ranks can be threads of one process must do when
// something fails. A backend registers them:
//
//   INSTANTIATE_TEST_SUITE_P(Thread, CommunicatorFailureConformanceTest, ::testing::Values(Run));
//
// An error of a call, or of a rank, is an error of the world: all its ranks learn the same.
#ifndef MEGATRON_COMM_COMMUNICATOR_FAILURE_CONFORMANCE_H_
#define MEGATRON_COMM_COMMUNICATOR_FAILURE_CONFORMANCE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/process_group.h"
#include "megatron/tensor/stream.h"

namespace megatron {

// Runs a function as every rank of a new world of `size`, on threads of this process, and returns
// the first error. No call may take longer than `deadline`.
using FailureConformanceRunner = std::function<absl::Status(
    int size, const std::function<absl::Status(int rank, const ProcessGroup& world)>& fn,
    absl::Duration deadline)>;

class CommunicatorFailureConformanceTest
    : public ::testing::TestWithParam<FailureConformanceRunner> {
 protected:
  absl::Status RunRanks(int size,
                        const std::function<absl::Status(int rank, const ProcessGroup& world)>& fn,
                        absl::Duration deadline = absl::Minutes(5)) const {
    return GetParam()(size, fn, deadline);
  }
};

// One rank with what it needs to call.
struct Caller {
  explicit Caller(const ProcessGroup& group) : group(group) {}

  void AllReduce(int64_t count = 4) {
    std::vector<float> values(count);
    group.AllReduce(Tensor(values.data(), DType::kFloat32, {count}), ReduceOp::kSum, stream);
  }

  ProcessGroup group;
  ThreadPool pool{1};
  Stream stream = Stream::Cpu(&pool);
};

}  // namespace megatron

#endif  // MEGATRON_COMM_COMMUNICATOR_FAILURE_CONFORMANCE_H_
