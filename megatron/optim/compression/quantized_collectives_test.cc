#include "megatron/optim/compression/quantized_collectives.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/ops/compression/group_codes.h"
#include "megatron/ops/host_tensor.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ops::CodeBits;
using ops::HostTensor;

constexpr int64_t kShard = 200;  // the last group is not full

// What a receiver gets of the elements, by the definition in ops/compression/group_codes.h.
std::vector<double> Received(const std::vector<double>& x, CodeBits bits) {
  const auto count = static_cast<int64_t>(x.size()), size = ops::GroupSize(bits);
  const float c = bits == CodeBits::k8 ? 127 : 7;
  std::vector<double> received;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = i / size * size, end = std::min(count, begin + size);
    float largest = 0;
    for (int64_t j = begin; j < end; ++j)
      largest = std::max(largest, std::abs(static_cast<float>(x[j])));
    const float scale = largest / c;
    received.push_back(std::nearbyint(static_cast<float>(x[i]) / scale) * scale);
  }
  return received;
}

std::vector<double> ShardOf(int rank, int shard) {
  const HostTensor x = HostTensor::Normal({kShard}, DType::kFloat32, 100 * rank + shard);
  std::vector<double> values;
  for (int64_t i = 0; i < kShard; ++i) values.push_back(x.Get(i));
  return values;
}

void Add(const std::vector<double>& summand, std::vector<double>* sum) {
  sum->resize(summand.size());
  for (size_t i = 0; i < summand.size(); ++i)
    (*sum)[i] = static_cast<float>((*sum)[i]) + static_cast<float>(summand[i]);
}

Tensor WholeOf(int rank, int ranks, const HostTensor& whole) {
  for (int shard = 0; shard < ranks; ++shard) {
    const std::vector<double> values = ShardOf(rank, shard);
    for (int64_t i = 0; i < kShard; ++i)
      whole.tensor().data<float>()[shard * kShard + i] = static_cast<float>(values[i]);
  }
  return whole;
}

absl::Status OnHosts(int ranks, int hosts,
                     const std::function<void(const ProcessGroups&, const Stream&)>& body) {
  return RunRanks(ranks, [&](int rank, const ProcessGroup& world) -> absl::Status {
    ThreadPool pool(1);
    ParallelSizes sizes;
    sizes.hosts = hosts;
    MEGATRON_ASSIGN_OR_RETURN(const RankGrid grid, RankGrid::Create(sizes, ranks));
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                              MakeGroups(grid, grid, world.communicator()));
    body(groups, Stream::Cpu(&pool));
    return world.status();
  });
}

void ReduceScatter(const Tensor& whole, const ProcessGroups& groups, const Stream& stream) {
  const HostTensor scratch(
      {QuantizedReduceScatterScratch(CodeBits::k4, kShard, groups.world.size())}, DType::kUInt8);
  QuantizedReduceScatter(whole, scratch, groups.data_context, groups.data_context_host,
                         groups.data_context_across_hosts, stream);
}

TEST(QuantizedCollectivesTest, EveryRankGathersWhatAReceiverGets) {
  for (const int ranks : {2, 3}) {
    EXPECT_THAT(OnHosts(ranks, 1,
                        [&](const ProcessGroups& groups, const Stream& stream) {
                          const HostTensor all({ranks * kShard}, DType::kFloat32),
                              whole({ranks * kShard}, DType::kFloat32),
                              scratch({QuantizedAllGatherScratch(kShard, ranks)}, DType::kUInt8);
                          const int rank = groups.world.rank();
                          // All ranks have the same shards here, so each knows those of the others.
                          WholeOf(0, ranks, whole);
                          QuantizedAllGather(
                              whole.tensor().Slice(0, rank * kShard, (rank + 1) * kShard),
                              /*error=*/Tensor(), all, scratch, groups.world, stream);
                          for (int shard = 0; shard < ranks; ++shard) {
                            const auto want = Received(ShardOf(0, shard), CodeBits::k8);
                            for (int64_t i = 0; i < kShard; ++i) {
                              EXPECT_EQ(all.Get(shard * kShard + i), static_cast<float>(want[i]))
                                  << shard << " " << i;
                            }
                          }
                        }),
                IsOk());
  }
}

// The sum, not a mean over a part of the ranks; to the bit that of the plain reference, and within
// two roundings of the exact sum.
TEST(QuantizedCollectivesTest, AShardIsTheSumWithOneRoundingAHop) {
  struct Case {
    int ranks, hosts;
  };
  for (const Case& c : {Case{2, 1}, Case{3, 1}, Case{4, 2}, Case{6, 2}, Case{6, 3}, Case{4, 4}}) {
    const auto body = [&](const ProcessGroups& groups, const Stream& stream) {
      const int mine = groups.world.rank(), of_host = c.ranks / c.hosts;
      const HostTensor whole({c.ranks * kShard}, DType::kFloat32);
      ReduceScatter(WholeOf(mine, c.ranks, whole), groups, stream);
      std::vector<double> want, exact(kShard, 0);
      const bool in_two_hops = c.hosts > 1 && of_host > 1;
      double largest = 0;
      for (int host = 0; host < c.hosts; ++host) {
        std::vector<double> of_ranks;
        for (int rank = host * of_host; rank < (host + 1) * of_host; ++rank) {
          const std::vector<double> summand = ShardOf(rank, mine);
          Add(Received(summand, CodeBits::k4), in_two_hops ? &of_ranks : &want);
          for (int64_t i = 0; i < kShard; ++i) {
            exact[i] += summand[i];
            largest = std::max(largest, std::abs(summand[i]));
          }
        }
        if (in_two_hops) Add(Received(of_ranks, CodeBits::k4), &want);
      }
      // The first rounding is of magnitudes up to `largest`, once a rank; the second of sums of a
      // host's ranks, once a host.
      const double bound = c.ranks * largest / 14 * 2.15;
      for (int64_t i = 0; i < kShard; ++i) {
        const double got = whole.Get(mine * kShard + i);
        EXPECT_EQ(got, static_cast<float>(want[i])) << c.ranks << " ranks " << i;
        EXPECT_LE(std::abs(got - exact[i]), bound);
      }
    };
    EXPECT_THAT(OnHosts(c.ranks, c.hosts, body), IsOk());
  }
}

TEST(QuantizedCollectivesTest, WhatIsNotFiniteOnOneRankArrivesAsNan) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const auto body = [&](const ProcessGroups& groups, const Stream& stream) {
      const int mine = groups.world.rank();
      const HostTensor whole({4 * kShard}, DType::kFloat32);
      WholeOf(mine, 4, whole);
      if (mine == 1) whole.tensor().data<float>()[2 * kShard + 70] = bad;
      ReduceScatter(whole, groups, stream);
      bool finite = true;
      for (int64_t i = 0; i < kShard; ++i) finite &= std::isfinite(whole.Get(mine * kShard + i));
      EXPECT_EQ(finite, mine != 2);
      EXPECT_EQ(std::isnan(whole.Get(mine * kShard + 70)), mine == 2);
    };
    EXPECT_THAT(OnHosts(4, 2, body), IsOk());
  }
}

}  // namespace
}  // namespace megatron
