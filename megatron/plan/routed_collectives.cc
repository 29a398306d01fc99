#include "megatron/plan/routed_collectives.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "megatron/comm/collective_routes.h"

namespace megatron {
namespace {

// Those of comm/tcp/tcp_routed_move.
constexpr double kLeastSegment = 16 << 10, kMostSegment = 256 << 10;

// What each host sends to others.
struct Sent {
  std::vector<double> of_host;

  RoutedCall Call() const {
    RoutedCall call;
    for (const double sent : of_host) {
      call.most = std::max(call.most, sent);
      call.mean += sent / double(of_host.size());
    }
    return call;
  }
};

// Partial sums go from rank 0 up to the last one, and the result to rank 0 and on. What is gathered
// goes around from each rank to the one before it.
RoutedCall RouteRing(TrafficCall call, int64_t ranks, int64_t of_host) {
  const double n = double(ranks);
  const int64_t hosts = (ranks + of_host - 1) / of_host;
  Sent sent{std::vector<double>(hosts, call == TrafficCall::kAllGather ? (n - 1) / n : 0)};
  if (call != TrafficCall::kAllGather) {
    const bool scatters = call == TrafficCall::kReduceScatter;
    for (int64_t host = 0; host + 1 < hosts; ++host) {
      // The last rank has its result.
      const double behind = double(std::max<int64_t>(0, ranks - 1 - (host + 1) * of_host));
      sent.of_host[host] = 1 + (scatters ? behind / n : behind > 0 ? 1 : 0);
    }
    sent.of_host[hosts - 1] += scatters ? (n - 1) / n : 1;
  }
  RoutedCall routed = sent.Call();
  const double ways = call == TrafficCall::kAllGather ? 1 : 2;
  routed.steps = ways * (n - 1);
  routed.far_steps = std::min(routed.steps, ways * double(hosts) - (ways - 1));
  return routed;
}

// Partial sums go up to rank 0 and the result comes down. What a rank has that is gathered goes
// down the tree whose ranks are shifted by it.
RoutedCall RouteTree(TrafficCall call, int64_t ranks, int64_t of_host) {
  const double n = double(ranks);
  Sent sent{std::vector<double>((ranks + of_host - 1) / of_host, 0)};
  double depth = 0, far_depth = 0;
  std::vector<double> below(ranks, 1);
  for (int64_t rank = 1; rank < ranks; ++rank) {
    double steps = 0, far = 0;
    for (int64_t at = rank; at > 0; ++steps) {
      const int64_t parent = TreeParent(static_cast<int>(ranks), static_cast<int>(at));
      far += at / of_host != parent / of_host;
      below[parent] += 1;
      at = parent;
    }
    depth = std::max(depth, steps);
    far_depth = std::max(far_depth, far);
  }
  for (int64_t rank = 1; rank < ranks; ++rank) {
    const int64_t parent = TreeParent(static_cast<int>(ranks), static_cast<int>(rank));
    if (call == TrafficCall::kAllGather) {
      // Of a host's ranks those whose neighbour at this distance is on another one.
      const int64_t distance = std::abs(rank - parent);
      const int64_t near = std::max<int64_t>(0, of_host - distance) +
                           std::max<int64_t>(0, of_host - (ranks - distance));
      for (double& bytes : sent.of_host) bytes += double(of_host - near) / n;
    } else if (rank / of_host != parent / of_host) {
      sent.of_host[rank / of_host] += 1;
      sent.of_host[parent / of_host] += call == TrafficCall::kReduceScatter ? below[rank] / n : 1;
    }
  }
  RoutedCall routed = sent.Call();
  const double ways = call == TrafficCall::kAllGather ? 1 : 2;
  routed.steps = ways * depth;
  routed.far_steps = ways * far_depth;
  return routed;
}

}  // namespace

RoutedCall RouteCall(Implementation::Route route, TrafficCall call, int64_t ranks,
                     int64_t ranks_of_host) {
  return route == Implementation::RING ? RouteRing(call, ranks, ranks_of_host)
                                       : RouteTree(call, ranks, ranks_of_host);
}

double RoutedSeconds(Implementation::Route route, TrafficCall call, int64_t ranks,
                     int64_t ranks_of_host, double bytes, const RoutedLinks& links) {
  const RoutedCall routed = RouteCall(route, call, ranks, ranks_of_host);
  const RoutedCall of_ranks = RouteCall(route, call, ranks, 1);
  // Sums have slots for as many segments as a result takes steps to come back.
  const bool sums = call != TrafficCall::kAllGather;
  const double back =
      route == Implementation::RING ? double(ranks) : (sums ? 1 : 2) * of_ranks.steps;
  const double segment =
      std::min(bytes, std::clamp(bytes / (4 * (back + 1)), kLeastSegment, kMostSegment));
  const double way =
      routed.far_steps * (links.far_latency + segment / links.far_rate) +
      (routed.steps - routed.far_steps) * (links.near_latency + segment / links.near_rate);
  const double busy =
      std::max(routed.most * bytes / links.far_rate, of_ranks.most * bytes / links.near_rate);
  const double rounds = segment > 0 ? bytes / segment / (back + 1) : 0;
  const double waits = sums ? rounds * way * back / std::max(1.0, routed.steps) : 0;
  // All ranks compare the call first.
  return links.far_latency + way + std::max(busy, waits);
}

}  // namespace megatron
