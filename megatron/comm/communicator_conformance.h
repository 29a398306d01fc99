// The tests of what every Communicator must do. A backend registers them:
//
//   INSTANTIATE_TEST_SUITE_P(Thread, CommunicatorConformanceTest,
//                            ::testing::ValuesIn(ConformanceCases(RunOnThreads)),
//                            ConformanceCaseName);
//
// Ranks report what they found by their status alone, so that they may be threads or processes.
#ifndef MEGATRON_COMM_COMMUNICATOR_CONFORMANCE_H_
#define MEGATRON_COMM_COMMUNICATOR_CONFORMANCE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "megatron/comm/process_group.h"
#include "megatron/tensor/stream.h"

namespace megatron {

// One rank's part of a test. The stream's device is where its tensors live.
using ConformanceRank =
    std::function<absl::Status(const ProcessGroup& world, const Stream& stream)>;

// Runs a function as every rank of a new world of `size` and returns the first error.
using ConformanceRunner = std::function<absl::Status(int size, const ConformanceRank& rank)>;

struct ConformanceCase {
  ConformanceRunner run;
  int size = 1;
  // Sums are formed over each run of this many ranks, rounded, and then over the runs. 0: over all
  // ranks at once.
  int ranks_per_host = 0;
  // The algorithm of the calls of `run`.
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kMesh;
};

// Worlds of 1, 2, 3 and 4 ranks.
std::vector<ConformanceCase> ConformanceCases(const ConformanceRunner& run);
// The same with calls by each algorithm but the mesh. The runner's ranks are given its communicator
// with an algorithm.
std::vector<ConformanceCase> AlgorithmCases(const ConformanceRunner& run);

std::string ConformanceCaseName(const ::testing::TestParamInfo<ConformanceCase>& info);

class CommunicatorConformanceTest : public ::testing::TestWithParam<ConformanceCase> {
 protected:
  int size() const { return GetParam().size; }
  void RunRanks(const ConformanceRank& rank) const;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_COMMUNICATOR_CONFORMANCE_H_
