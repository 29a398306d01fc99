#include "megatron/optim/replica_check.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Layout {
  int ranks = 1, tensor = 1, instances = 1;
  DataSharding sharding = DataSharding::kNone;
  DType dtype = DType::kFloat32;
};

// A bit of an element that a rank of the world holds.
struct Flip {
  int rank = -1;
  std::string parameter;
};

// Returns what the ranks say, those that say anything.
std::vector<std::string> Check(const Layout& layout, const std::vector<Flip>& flips) {
  absl::Mutex mutex;
  std::vector<std::string> errors;
  const absl::Status status =
      RunRanks(layout.ranks, [&](int rank, const ProcessGroup& world) -> absl::Status {
        ParallelSizes sizes;
        sizes.tensor = layout.tensor;
        sizes.optimizer_instances = layout.instances;
        MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(sizes, world.size()));
        MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert,
                                  RankGrid::CreateExpert(sizes, world.size()));
        MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                                  MakeGroups(dense, expert, world.communicator()));
        ThreadPool pool(1);
        const Stream stream = Stream::Cpu(&pool);
        TestModel model({}, layout.dtype);
        model.buffer_options.sharding = layout.sharding;
        model.buffer_options.data = {groups.data_context_shards.size(),
                                     groups.data_context_shards.rank()};
        model.Add("cut", SplitOverTensor({8, 300}, 0, groups.tensor.size(), groups.tensor.rank()));
        model.Add("whole", Replicated({6}));
        model.Build();
        model.buffers->InitializeWeights(9, stream);
        for (const FlatParameter& flat : model.buffers->parameters()) {
          for (const Flip& flip : flips) {
            if (flip.rank != rank || flip.parameter != flat.parameter->name) continue;
            const Bucket& bucket = model.buffers->bucket_of(flat);
            const FlatRange stored = Common(flat.range, model.buffers->weight_range(bucket));
            if (stored.size() == 0) continue;
            *static_cast<char*>(model.buffers->Weights(bucket, stored).raw()) ^= 1;
          }
        }
        ReplicaCheck check(*model.buffers, groups, nullptr);
        const absl::Status found = check.Check(stream);
        MEGATRON_RETURN_IF_ERROR(world.status());
        if (found.ok()) return absl::OkStatus();
        EXPECT_EQ(found.code(), absl::StatusCode::kDataLoss);
        absl::MutexLock lock(&mutex);
        errors.emplace_back(found.message());
        return absl::OkStatus();
      });
  EXPECT_THAT(status, IsOk());
  return errors;
}

const Layout kLayouts[] = {{4},
                           {4, 2},
                           {4, 1, 1, DataSharding::kStates, DType::kBFloat16},
                           {4, 2, 1, DataSharding::kGradients},
                           {4, 2, 1, DataSharding::kWeights},
                           {4, 1, 2, DataSharding::kWeights, DType::kBFloat16}};

TEST(ReplicaCheckTest, FindsNothingWhereNothingIsWrong) {
  for (const Layout& layout : kLayouts) EXPECT_THAT(Check(layout, {}), IsEmpty());
}

TEST(ReplicaCheckTest, NamesTheRankThatHasAnotherBit) {
  // All four ranks compare.
  const std::vector<std::string> errors = Check({4}, {{2, "cut"}});
  ASSERT_THAT(errors, SizeIs(4));
  for (const std::string& error : errors)
    EXPECT_THAT(error, HasSubstr("differ: cut on rank 2 of the world"));
  EXPECT_THAT(Check({4, 1, 1, DataSharding::kStates, DType::kBFloat16}, {{1, "whole"}})[0],
              HasSubstr("differ: whole on rank 1 of the world"));
}

TEST(ReplicaCheckTest, TwoRanksThatDifferAreBothNamed) {
  // Ranks 1 and 3 have the same block of what is cut.
  const std::vector<std::string> errors = Check({4, 2}, {{3, "cut"}});
  ASSERT_THAT(errors, SizeIs(2));
  EXPECT_THAT(errors[0],
              HasSubstr("weights that 2 ranks of dp-cp-1 should have alike differ: cut on "
                        "ranks 1, 3 of the world"));
}

TEST(ReplicaCheckTest, CountsTheOtherParameters) {
  EXPECT_THAT(Check({4}, {{0, "cut"}, {3, "whole"}})[0],
              HasSubstr("whole on rank 3 of the world, and 1 more parameter"));
}

TEST(ReplicaCheckTest, FindsWeightsThatTensorParallelRanksHaveAlike) {
  // With sharded weights no data-parallel rank has a replica.
  const std::vector<std::string> errors =
      Check({4, 2, 1, DataSharding::kWeights}, {{0, "whole"}, {0, "cut"}});
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("differ: whole on"));
  EXPECT_THAT(errors, SizeIs(2));
}

TEST(ReplicaCheckTest, FindsShardsThatInstancesHaveAlike) {
  EXPECT_THAT(Check({4, 1, 2, DataSharding::kWeights}, {{0, "cut"}}), SizeIs(2));
}

}  // namespace
}  // namespace megatron
