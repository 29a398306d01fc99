#include "megatron/plan/routed_collectives.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/comm/collective_routes.h"

namespace megatron {
namespace {

// What hosts send, by the ways of the communicator.
std::vector<double> SentOf(CollectiveAlgorithm algorithm, TrafficCall call, int ranks,
                           int of_host) {
  std::vector<double> sent((ranks + of_host - 1) / of_host, 0);
  const auto send = [&](int from, int to, double bytes) {
    if (from / of_host != to / of_host) sent[from / of_host] += bytes;
  };
  const double share = 1.0 / ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    if (call == TrafficCall::kAllGather) {
      for (int owner = 0; owner < ranks; ++owner) {
        const CollectiveRoute route = SpreadRoute(algorithm, ranks, owner, rank);
        if (route.parent >= 0) send(route.parent, rank, share);
      }
      continue;
    }
    const CollectiveRoute up = SumRoute(algorithm, ranks, rank);
    if (up.parent >= 0) send(rank, up.parent, 1);
    const int root = SumRoot(algorithm, ranks);
    const CollectiveRoute down = SpreadRoute(algorithm, ranks, root, rank);
    if (down.parent < 0) continue;
    double parts = 0;
    for (int owner = 0; owner < ranks; ++owner)
      parts += IsOnWay(algorithm, ranks, root, owner, rank) ? share : 0;
    send(down.parent, rank, call == TrafficCall::kReduceScatter ? parts : 1);
  }
  return sent;
}

TEST(RoutedCollectivesTest, SendWhatTheCommunicatorSends) {
  for (const TrafficCall call :
       {TrafficCall::kAllReduce, TrafficCall::kReduceScatter, TrafficCall::kAllGather}) {
    for (const int ranks : {2, 3, 4, 6, 8, 16}) {
      for (const int of_host : {1, 2, 4}) {
        if (of_host >= ranks || ranks % of_host != 0) continue;
        for (const bool is_ring : {true, false}) {
          const auto sent =
              SentOf(is_ring ? CollectiveAlgorithm::kRing : CollectiveAlgorithm::kTree, call, ranks,
                     of_host);
          const RoutedCall routed = RouteCall(is_ring ? Implementation::RING : Implementation::TREE,
                                              call, ranks, of_host);
          double mean = 0;
          for (const double bytes : sent) mean += bytes / double(sent.size());
          const auto what = testing::Message() << (is_ring ? "ring " : "tree ") << Name(call)
                                               << " of " << ranks << " on hosts of " << of_host;
          EXPECT_NEAR(routed.mean, mean, 1e-9) << what;
          // What a tree gathers is not the same for all hosts.
          const double most = *std::max_element(sent.begin(), sent.end());
          EXPECT_NEAR(routed.most, most, is_ring || call != TrafficCall::kAllGather ? 1e-9 : 0.6)
              << what;
        }
      }
    }
  }
}

// What docs/communication_savings.md has of eight ranks on two hosts, whose link has 100 Mbit/s and
// a delay of 1 ms.
TEST(RoutedCollectivesTest, TakeAboutWhatWasMeasured) {
  struct Measured {
    TrafficCall call;
    double bytes, ring, tree;
  };
  const RoutedLinks links = {1e9, 12.5e6, 50e-6, 1e-3};
  for (const Measured& m : {Measured{TrafficCall::kAllReduce, 16 << 20, 2.68, 2.74},
                            Measured{TrafficCall::kReduceScatter, 16 << 20, 1.86, 2.54},
                            Measured{TrafficCall::kAllGather, 16 << 20, 1.12, 1.94},
                            Measured{TrafficCall::kAllReduce, 1 << 20, 0.168, 0.182},
                            Measured{TrafficCall::kAllReduce, 256 << 10, 0.044, 0.068}}) {
    EXPECT_NEAR(RoutedSeconds(Implementation::RING, m.call, 8, 4, m.bytes, links), m.ring,
                0.25 * m.ring)
        << Name(m.call) << " of " << m.bytes;
    EXPECT_NEAR(RoutedSeconds(Implementation::TREE, m.call, 8, 4, m.bytes, links), m.tree,
                0.25 * m.tree)
        << Name(m.call) << " of " << m.bytes;
  }
  // Eight hosts, 50 ms from each other: sums wait for segments that come back.
  const RoutedLinks far = {1e9, 12.5e6, 50e-6, 50e-3};
  const auto seconds = [&](Implementation::Route route, double bytes) {
    return RoutedSeconds(route, TrafficCall::kAllReduce, 8, 1, bytes, far);
  };
  EXPECT_NEAR(seconds(Implementation::RING, 2 << 20), 2.266, 0.25 * 2.266);
  EXPECT_NEAR(seconds(Implementation::TREE, 2 << 20), 1.829, 0.25 * 1.829);
  EXPECT_NEAR(seconds(Implementation::RING, 8), 0.716, 0.25 * 0.716);
  EXPECT_NEAR(seconds(Implementation::TREE, 8), 0.356, 0.25 * 0.356);
}

}  // namespace
}  // namespace megatron
