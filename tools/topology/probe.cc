#include "tools/topology/probe.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator.h"
#include "tools/bandwidth/comm_bench_measure.h"

namespace megatron {
namespace {

constexpr int kFewRanks = 8, kMostOfAKind = 16;
constexpr int64_t kSmallest = 8;
constexpr size_t kHostBytes = 64;

struct HostFacts {
  char name[kHostBytes] = {};
  int32_t gpus = 0, domain = 0, rails = 0;
};

std::vector<int> FirstRanks(const MachineShape& shape) {
  std::vector<int> first;
  int rank = 0;
  for (const MachineShape::Node& node : shape.nodes) {
    first.push_back(rank);
    rank += static_cast<int>(node.ranks);
  }
  return first;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

absl::StatusOr<MachineShape> GroupByHost(const ProbedHost& host, const ProcessGroup& ranks) {
  HostFacts mine;
  host.name.copy(mine.name, kHostBytes - 1);
  if (host.links) {
    mine.gpus = host.links->gpus;
    mine.domain = host.links->Domain();
    mine.rails = host.links->network_cards;
  }
  std::vector<HostFacts> all(ranks.size());
  constexpr auto kBytes = static_cast<int64_t>(sizeof(HostFacts));
  ranks.AllGather(Tensor(&mine, DType::kUInt8, {kBytes}),
                  Tensor(all.data(), DType::kUInt8, {ranks.size() * kBytes}), Stream::Inline());
  MEGATRON_RETURN_IF_ERROR(ranks.status());

  MachineShape shape;
  std::set<std::string> seen;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string name = all[rank].name;
    if (shape.nodes.empty() || shape.nodes.back().host != name) {
      if (!seen.insert(name).second) {
        return absl::FailedPreconditionError(
            absl::StrCat("rank ", rank, " is on ", name,
                         ", as ranks before its neighbour: the launcher must number the ranks of "
                         "a host one after the other"));
      }
      shape.nodes.push_back({name, 0, std::max(1, all[rank].rails)});
    }
    ++shape.nodes.back().ranks;
  }
  // Without GPUs the ranks of a host share its memory. A rank uses the GPU of its number.
  shape.domain = all.front().gpus > 0 ? all.front().domain : shape.nodes.front().ranks;
  for (MachineShape::Node& node : shape.nodes) {
    node.rails = std::min(node.rails, node.ranks);
    shape.domain = std::min(shape.domain, node.ranks);
  }
  for (const HostFacts& facts : all) {
    if (facts.gpus > 0) shape.domain = std::min<int64_t>(shape.domain, facts.domain);
  }
  return shape;
}

std::vector<std::pair<int, int>> PairsToTime(const MachineShape& shape) {
  std::set<std::pair<int, int>> pairs;
  const auto ranks = static_cast<int>(shape.ranks());
  if (ranks <= kFewRanks) {
    for (int a = 0; a < ranks; ++a) {
      for (int b = a + 1; b < ranks; ++b) pairs.emplace(a, b);
    }
    return {pairs.begin(), pairs.end()};
  }
  const std::vector<int> first = FirstRanks(shape);
  const auto on_first = static_cast<int>(shape.nodes[0].ranks);
  for (int rank = 1; rank < std::min(on_first, kMostOfAKind); ++rank) pairs.emplace(0, rank);
  for (int node = 0; node < std::min(static_cast<int>(first.size()), kMostOfAKind); ++node) {
    if (shape.nodes[node].ranks > 1) pairs.emplace(first[node], first[node] + 1);
    if (node > 0) pairs.emplace(0, first[node]);
  }
  if (first.size() > 1) {
    const auto places = static_cast<int>(std::min(shape.nodes[0].ranks, shape.nodes[1].ranks));
    for (int place = 0; place < std::min(places, kMostOfAKind); ++place)
      pairs.emplace(place, first[1] + place);
  }
  return {pairs.begin(), pairs.end()};
}

absl::StatusOr<std::vector<PairTimes>> TimePairs(const std::vector<std::pair<int, int>>& pairs,
                                                 int64_t bytes, const ProcessGroup& host,
                                                 const ProcessGroup& world, const Stream& stream) {
  CommBenchOptions options;
  options.sizes = {kSmallest, bytes};
  options.check = false;
  std::vector<PairTimes> times;
  for (const auto& [a, b] : pairs) {
    std::vector<std::vector<int>> partition = {{a, b}};
    for (int rank = 0; rank < world.size(); ++rank) {
      if (rank != a && rank != b) partition.push_back({rank});
    }
    MEGATRON_ASSIGN_OR_RETURN(auto split, world.communicator()->Split(partition, "pair"));
    const ProcessGroup pair(std::move(split));
    PairTimes mine = {a, b, 0, 0};
    if (pair.size() > 1) {
      MEGATRON_ASSIGN_OR_RETURN(
          const CommBenchResult result,
          MeasureCollective(BenchOperation::kSendRecv, options, pair, stream));
      for (const CommBenchRow& row : result.rows) {
        const auto& timing = row.out_of_place ? row.out_of_place : row.in_place;
        (row.size <= kSmallest ? mine.microseconds : mine.gb_per_s) =
            row.size <= kSmallest ? timing->microseconds : timing->algbw;
      }
    }
    // The pair's first rank tells the others, which wait here.
    host.Broadcast(Tensor(&mine, DType::kUInt8, {static_cast<int64_t>(sizeof(mine))}), a,
                   Stream::Inline());
    MEGATRON_RETURN_IF_ERROR(host.status());
    times.push_back(mine);
  }
  return times;
}

void SetSpeeds(const std::vector<PairTimes>& times, MachineShape* shape) {
  const std::vector<int> first = FirstRanks(*shape);
  const auto node_of = [&](int rank) {
    return std::upper_bound(first.begin(), first.end(), rank) - first.begin();
  };
  std::vector<double> domain, node, rail;
  for (const PairTimes& pair : times) {
    if (pair.a / shape->domain == pair.b / shape->domain && node_of(pair.a) == node_of(pair.b)) {
      domain.push_back(pair.gb_per_s);
    } else {
      (node_of(pair.a) == node_of(pair.b) ? node : rail).push_back(pair.gb_per_s);
    }
  }
  shape->domain_gb_per_s = Median(std::move(domain));
  shape->node_gb_per_s = Median(std::move(node));
  shape->rail_gb_per_s = Median(std::move(rail));
}

std::string FormatPairs(const std::vector<PairTimes>& times) {
  std::map<std::pair<int, int>, std::string> cells;
  std::set<int> ranks;
  for (const PairTimes& pair : times) {
    cells[{pair.a, pair.b}] = absl::StrFormat("%.3g", pair.gb_per_s);
    cells[{pair.b, pair.a}] = absl::StrFormat("%.3g", pair.microseconds);
    ranks.insert({pair.a, pair.b});
  }
  std::string text = absl::StrFormat("%-8s", "rank");
  for (const int column : ranks) absl::StrAppendFormat(&text, " %8d", column);
  absl::StrAppend(&text, "\n");
  for (const int row : ranks) {
    absl::StrAppendFormat(&text, "%-8d", row);
    for (const int column : ranks) {
      const auto found = cells.find({row, column});
      absl::StrAppendFormat(&text, " %8s",
                            row == column          ? "-"
                            : found == cells.end() ? ""
                                                   : found->second);
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace megatron
