#include "megatron/comm/algorithm_communicator.h"

#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Rank r's summand. In the order of ranks the sum is 0, and 1 as a tree brackets it.
constexpr float kValues[] = {1, 1 << 24, 1, -(1 << 24)};

absl::Status ExpectSum(const ProcessGroup& group, float expected) {
  float value = kValues[group.rank()];
  group.AllReduce(Tensor(&value, DType::kFloat32, {1}), ReduceOp::kSum, Stream::Inline());
  MEGATRON_RETURN_IF_ERROR(group.status());
  EXPECT_EQ(value, expected);
  return absl::OkStatus();
}

TEST(AlgorithmCommunicatorTest, CallsAndThoseOfGroupsTakeTheAlgorithm) {
  const absl::Status status = RunRanks(8, [](int rank, const ProcessGroup& world) -> absl::Status {
    const auto tree = WithAlgorithm(world.communicator(), CollectiveAlgorithm::kTree);
    for (const auto& [communicator, expected] :
         {std::pair(tree, 1.0f),
          {world.communicator(), 0.0f},
          {WithAlgorithm(world.communicator(), CollectiveAlgorithm::kRing), 0.0f}}) {
      MEGATRON_ASSIGN_OR_RETURN(auto half, communicator->Split({{0, 1, 2, 3}, {4, 5, 6, 7}}, "dp"));
      MEGATRON_RETURN_IF_ERROR(ExpectSum(ProcessGroup(half), expected));
    }
    std::vector<float> in(8, rank), out(8);
    ProcessGroup(tree).AllToAll(Tensor(in.data(), DType::kFloat32, {8}),
                                Tensor(out.data(), DType::kFloat32, {8}), Stream::Inline());
    EXPECT_EQ(out, std::vector<float>({0, 1, 2, 3, 4, 5, 6, 7}));
    return world.status();
  });
  EXPECT_THAT(status, IsOk());
}

TEST(AlgorithmCommunicatorTest, RanksWithDifferentAlgorithmsAreNamed) {
  const absl::Status status = RunRanks(2, [](int rank, const ProcessGroup& world) -> absl::Status {
    const auto algorithm = rank == 0 ? CollectiveAlgorithm::kTree : CollectiveAlgorithm::kRing;
    return ExpectSum(ProcessGroup(WithAlgorithm(world.communicator(), algorithm)), 0);
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("all-reduce(sum) of fp32[1] by tree"),
                                     HasSubstr("all-reduce(sum) of fp32[1] by ring"))));
}

}  // namespace
}  // namespace megatron
