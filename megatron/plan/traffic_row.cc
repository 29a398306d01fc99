#include "megatron/plan/traffic_row.h"

#include <algorithm>
#include <cmath>

#include "megatron/plan/routed_collectives.h"

namespace megatron {
namespace {

// A hierarchical call is cut into so many parts, or more so that none has more bytes than these.
constexpr double kParts = 4;
constexpr double kBytesOfPart = 4 << 20;

double Passes(const TrafficRow& row) { return row.call == TrafficCall::kAllReduce ? 2 : 1; }

PlanGroup InHost(const TrafficRow& row) { return {row.ranks_of_host, row.group.stride}; }

PlanGroup BetweenHosts(const TrafficRow& row) {
  return {row.group.ranks / row.ranks_of_host, row.group.stride * row.ranks_of_host};
}

// The bytes of one pass of a tensor over the group that go out of the domain from a rank.
double NetworkBytes(const Hardware& gpu, const PlanGroup& group, double bytes, bool is_ring) {
  const double ranks = double(group.ranks);
  const double inside = double(RanksInDomain(group, gpu.domain()));
  if (inside >= ranks) return 0;
  return is_ring ? bytes * (ranks - 1) / ranks / inside : bytes * (ranks - inside) / ranks;
}

// The bytes of a call over the group that go out of the domain from a rank, as a mean.
double FarBytes(const Hardware& gpu, const TrafficRow& row, const PlanGroup& group, double bytes) {
  const int64_t inside = RanksInDomain(group, gpu.domain());
  const bool is_routed = gpu.cores() > 0 && inside < group.ranks &&
                         row.route != Implementation::MESH && row.call != TrafficCall::kAllToAll;
  if (is_routed)
    return RouteCall(row.route, row.call, group.ranks, inside).mean * bytes / double(inside);
  const bool is_ring = gpu.cores() == 0 && row.call != TrafficCall::kAllToAll;
  return Passes(row) * NetworkBytes(gpu, group, bytes, is_ring);
}

double HierarchicalSeconds(const Hardware& gpu, const Implementation& program,
                           const TrafficRow& row) {
  const auto pass = [&](const PlanGroup& group) {
    return [&, group](double bytes) {
      return CollectiveSeconds(gpu, program, row.call, group, bytes) / Passes(row);
    };
  };
  return LevelSeconds(row.bytes, row.ranks_of_host, pass(InHost(row)), pass(BetweenHosts(row)));
}

}  // namespace

const char* Name(TrafficAxis axis) {
  switch (axis) {
    case TrafficAxis::kTensor:
      return "tensor";
    case TrafficAxis::kContext:
      return "context";
    case TrafficAxis::kExpert:
      return "expert";
    case TrafficAxis::kPipeline:
      return "pipeline";
    case TrafficAxis::kData:
      return "data";
  }
  return "";
}

bool HasTwoLevels(const TrafficRow& row) {
  return row.ranks_of_host > 1 && row.ranks_of_host < row.group.ranks;
}

// Both levels of a hierarchical call together send what a flat one does.
double SentBytes(const TrafficRow& row) {
  if (row.call == TrafficCall::kMessage) return row.calls * row.bytes;
  const double share = double(row.group.ranks - 1) / double(row.group.ranks);
  return row.calls * Passes(row) * share * row.bytes;
}

double NetworkBytes(const Hardware& gpu, const TrafficRow& row) {
  if (row.call == TrafficCall::kMessage)
    return row.group.stride < gpu.domain() ? 0 : SentBytes(row);
  if (!HasTwoLevels(row)) return row.calls * FarBytes(gpu, row, row.group, row.bytes);
  return row.calls * (FarBytes(gpu, row, InHost(row), row.bytes) +
                      FarBytes(gpu, row, BetweenHosts(row), row.bytes / double(row.ranks_of_host)));
}

double LevelSeconds(double bytes, int64_t ranks_of_host,
                    absl::FunctionRef<double(double part)> within,
                    absl::FunctionRef<double(double part)> between) {
  const double parts = std::max(kParts, std::ceil(bytes / kBytesOfPart));
  const double inside = within(bytes / parts);
  const double across = between(bytes / parts / double(ranks_of_host));
  return parts * std::max(inside, across) + std::min(inside, across);
}

double TrafficSeconds(const Hardware& gpu, const Implementation& program, const TrafficRow& row) {
  if (row.call == TrafficCall::kMessage)
    return row.calls * MessageSeconds(gpu, program, row.group.stride, row.bytes);
  const double call = HasTwoLevels(row)
                          ? Passes(row) * HierarchicalSeconds(gpu, program, row)
                          : CollectiveSeconds(gpu, program, row.call, row.group, row.bytes);
  const double coding =
      row.coded_bytes > 0
          ? row.coded_bytes / (gpu.memory_gb_per_s() * 1e9 * program.memory_efficiency())
          : 0;
  return row.calls * (call + coding);
}

}  // namespace megatron
