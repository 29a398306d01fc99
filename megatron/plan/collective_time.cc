#include "megatron/plan/collective_time.h"

#include <algorithm>
#include <cmath>

#include "megatron/plan/routed_collectives.h"

namespace megatron {
namespace {

constexpr double kGiga = 1e9;
// All-reduces inside an A100 node take 12.5 us and 3.3 us for each rank with the smallest tensors.
constexpr double kLinkLatency = 12.5e-6;
constexpr double kLinkLatencyOfRank = 3.3e-6;
constexpr double kNetworkLatency = 20e-6;
// Rings of few ranks reach less of the links: half of their rate with this number of ranks.
constexpr double kRanksOfHalfRate = 0.61;

double OrElse(double microseconds, double seconds) {
  return microseconds > 0 ? microseconds * 1e-6 : seconds;
}

double LinkLatency(const Hardware& gpu, int64_t ranks) {
  return OrElse(gpu.link_latency_us(), kLinkLatency) +
         OrElse(gpu.link_rank_latency_us(), kLinkLatencyOfRank) * double(ranks);
}

}  // namespace

const char* Name(TrafficCall call) {
  switch (call) {
    case TrafficCall::kAllReduce:
      return "all-reduce";
    case TrafficCall::kAllGather:
      return "all-gather";
    case TrafficCall::kReduceScatter:
      return "reduce-scatter";
    case TrafficCall::kAllToAll:
      return "all-to-all";
    case TrafficCall::kMessage:
      return "message";
  }
  return "";
}

int64_t RanksInDomain(const PlanGroup& group, int64_t domain) {
  const auto inside = [domain](int64_t count, int64_t stride) {
    return std::max<int64_t>(1, std::min(count, domain / std::max<int64_t>(1, stride)));
  };
  if (group.block == 0 || group.block >= group.ranks) return inside(group.ranks, group.stride);
  const int64_t of_block = inside(group.block, group.stride);
  return of_block < group.block ? of_block
                                : of_block * inside(group.ranks / group.block, group.block_stride);
}

namespace {

// Returns the seconds of a pass of a tensor from rank to rank, or around a ring.
double PassSeconds(const Hardware& gpu, const Implementation& program, const PlanGroup& group,
                   double bytes, bool is_ring) {
  if (group.ranks <= 1) return 0;
  const int64_t inside = RanksInDomain(group, gpu.domain());
  const double link = gpu.link_gb_per_s() * kGiga * program.link_efficiency() * group.ranks /
                      (group.ranks + kRanksOfHalfRate);
  double latency = inside > 1 ? LinkLatency(gpu, inside) : 0;
  if (inside == group.ranks) return latency + bytes * (group.ranks - 1) / group.ranks / link;
  latency += OrElse(gpu.network_latency_us(), kNetworkLatency) *
             std::log2(static_cast<double>(group.ranks) / inside);
  const double network = gpu.network_gb_per_s() * kGiga * program.network_efficiency();
  if (!is_ring) {
    return latency +
           std::max(bytes * double(inside - 1) / group.ranks / link,
                    bytes * double(group.ranks - inside) / group.ranks / std::min(link, network));
  }
  // The ranks of a group that share a node drive one network card each for the ring.
  const double rate = std::min(link, network * double(inside));
  return latency + bytes * (group.ranks - 1) / group.ranks / rate;
}

// Returns the seconds of a call of threads. They meet once and read each other's memory. Whatever
// their number, each reads a whole tensor and writes one, of which it has a part alone behind a
// reduce-scatter.
double ThreadCallSeconds(const Hardware& gpu, const Implementation& program, TrafficCall call,
                         int64_t ranks, double bytes) {
  const double written = call == TrafficCall::kReduceScatter ? 1 / double(ranks) : 1;
  return LinkLatency(gpu, ranks) +
         (1 + written) / 2 * bytes / (gpu.link_gb_per_s() * kGiga * program.link_efficiency());
}

}  // namespace

double CollectiveSeconds(const Hardware& gpu, const Implementation& program, TrafficCall call,
                         const PlanGroup& group, double bytes) {
  if (group.ranks <= 1) return 0;
  const int64_t inside = RanksInDomain(group, gpu.domain());
  if (gpu.cores() > 0 && inside == group.ranks)
    return ThreadCallSeconds(gpu, program, call, group.ranks, bytes);
  const bool is_sum_or_gather = call == TrafficCall::kAllReduce ||
                                call == TrafficCall::kReduceScatter ||
                                call == TrafficCall::kAllGather;
  // GPUs take NCCL's ways, and ranks of one process read each other's memory.
  if (gpu.cores() > 0 && inside < group.ranks && is_sum_or_gather &&
      program.route() != Implementation::MESH) {
    RoutedLinks links;
    links.near_rate = gpu.link_gb_per_s() * kGiga * program.link_efficiency();
    links.far_rate = gpu.network_gb_per_s() * kGiga * program.network_efficiency() * double(inside);
    links.near_latency = LinkLatency(gpu, 2);
    links.far_latency = OrElse(gpu.network_latency_us(), kNetworkLatency);
    return RoutedSeconds(program.route(), call, group.ranks, inside, bytes, links);
  }
  const bool is_ring = gpu.cores() == 0 && call != TrafficCall::kAllToAll;
  const double pass = PassSeconds(gpu, program, group, bytes, is_ring);
  return call == TrafficCall::kAllReduce ? 2 * pass : pass;
}

double LaneSeconds(const Hardware& gpu) {
  if (gpu.cores() == 0) return 0;
  return OrElse(gpu.lane_latency_us(), LinkLatency(gpu, 2));
}

double MessageSeconds(const Hardware& gpu, const Implementation& program, int64_t stride,
                      double bytes) {
  if (stride < gpu.domain()) {
    return OrElse(gpu.link_latency_us(), kLinkLatency) +
           bytes / (gpu.link_gb_per_s() * kGiga * program.link_efficiency());
  }
  return OrElse(gpu.network_latency_us(), kNetworkLatency) +
         bytes / (gpu.network_gb_per_s() * kGiga * program.network_efficiency());
}

}  // namespace megatron
