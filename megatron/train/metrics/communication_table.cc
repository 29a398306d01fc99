#include "megatron/train/metrics/communication_table.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "megatron/comm/collective.h"

namespace megatron {
namespace {

static_assert(std::is_trivially_copyable_v<CallTimes>);

constexpr double kMiB = 1 << 20;

std::optional<Collective> CollectiveOf(absl::string_view name) {
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
        Collective::kAllToAll, Collective::kAllToAllV, Collective::kBroadcast, Collective::kBarrier,
        Collective::kExchange}) {
    if (name == Name(collective)) return collective;
  }
  return std::nullopt;
}

// Returns the name without the numbers of groups: "dp-cp-overlap" of "dp-cp-3-overlap-0".
std::string KindOf(const std::string& group) {
  return absl::StrJoin(absl::StrSplit(group, '-',
                                      [](absl::string_view part) {
                                        return part.empty() || !absl::ascii_isdigit(part[0]);
                                      }),
                       "-");
}

void SetText(absl::string_view text, std::array<char, 24>* to) {
  std::memcpy(to->data(), text.data(), std::min(text.size(), to->size() - 1));
}

// A row of the table: the same operation on all ranks that have it.
struct Row {
  Collective operation = Collective::kBarrier;
  int64_t group_size = 1;
  std::vector<CallTimes> ranks;

  double Mean(int64_t CallTimes::*field) const {
    double sum = 0;
    for (const CallTimes& rank : ranks) sum += static_cast<double>(rank.*field);
    return sum / static_cast<double>(ranks.size());
  }
  // Returns the least time of a byte, or of a call without bytes.
  double Fastest() const {
    double least = 0;
    for (const CallTimes& rank : ranks) {
      const double time = static_cast<double>(rank.fastest) / Amount(rank);
      if (&rank == &ranks.front() || time < least) least = time;
    }
    return least;
  }
  static double Amount(const CallTimes& rank) {
    return static_cast<double>(std::max<int64_t>(rank.bytes > 0 ? rank.bytes : rank.calls, 1));
  }
};

CommunicationRow MeansOf(const std::string& group, const Row& row) {
  CommunicationRow means;
  means.group = group;
  means.operation = Name(row.operation);
  means.ranks = row.group_size;
  means.calls = row.Mean(&CallTimes::calls);
  means.bytes = row.Mean(&CallTimes::bytes);
  means.time = row.Mean(&CallTimes::nanoseconds) * 1e-9;
  for (const CallTimes& rank : row.ranks) {
    means.transfer +=
        row.Fastest() * Row::Amount(rank) / static_cast<double>(row.ranks.size()) * 1e-9;
  }
  means.waiting = std::max(0.0, means.time - means.transfer);
  if (means.bytes == 0 || means.transfer == 0) return means;
  means.algorithm_bandwidth = means.bytes / means.transfer;
  means.bus_bandwidth = means.algorithm_bandwidth *
                        BusBandwidthFactor(row.operation, static_cast<int>(row.group_size));
  return means;
}

std::string FormatRow(const CommunicationRow& row) {
  std::string text = absl::StrFormat("%14s  %5d  %14s  %9.0f  %10.1f  %9.2f  %9.2f  %9.2f",
                                     row.group, row.ranks, row.operation, row.calls,
                                     row.bytes / kMiB, row.time, row.transfer, row.waiting);
  if (row.algorithm_bandwidth == 0) return text;
  absl::StrAppendFormat(&text, "  %7.2f  %7.2f", row.algorithm_bandwidth * 1e-9,
                        row.bus_bandwidth * 1e-9);
  return text;
}

}  // namespace

std::vector<CallTimes> CallsOf(absl::Span<const StreamTimes> streams) {
  std::map<std::pair<std::string, std::string>, CallTimes> calls;
  for (const StreamTimes& stream : streams) {
    for (const SpanTotal& span : stream.spans) {
      if (span.group.empty()) continue;
      const std::string kind = KindOf(span.group);
      CallTimes& call = calls[{kind, span.name}];
      SetText(kind, &call.group);
      SetText(span.name, &call.operation);
      call.ranks = span.ranks;
      call.calls += span.count;
      call.bytes +=
          span.name == Name(Collective::kAllGather) ? span.bytes * span.ranks : span.bytes;
      call.nanoseconds += span.nanoseconds;
      call.fastest += span.nanoseconds - span.waiting;
    }
  }
  std::vector<CallTimes> all;
  for (const auto& [key, call] : calls) all.push_back(call);
  return all;
}

std::vector<std::vector<CallTimes>> GatherCalls(const std::vector<CallTimes>& mine,
                                                const ProcessGroup& world) {
  const Stream stream = Stream::Inline();
  auto most = static_cast<int64_t>(mine.size());
  world.AllReduce(Tensor(&most, DType::kInt64, {1}), ReduceOp::kMax, stream);
  if (!world.status().ok() || most == 0) return {mine};
  std::vector<CallTimes> sent = mine, all(most * world.size());
  sent.resize(most);
  const int64_t bytes = most * static_cast<int64_t>(sizeof(CallTimes));
  world.AllGather(Tensor(sent.data(), DType::kUInt8, {bytes}),
                  Tensor(all.data(), DType::kUInt8, {bytes * world.size()}), stream);
  if (!world.status().ok()) return {mine};
  std::vector<std::vector<CallTimes>> ranks(world.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].calls > 0) ranks[i / most].push_back(all[i]);
  }
  return ranks;
}

std::vector<CommunicationRow> CommunicationRows(absl::Span<const std::vector<CallTimes>> ranks) {
  std::map<std::pair<std::string, std::string>, Row> rows;
  for (const std::vector<CallTimes>& rank : ranks) {
    for (const CallTimes& call : rank) {
      const std::optional<Collective> operation = CollectiveOf(call.operation.data());
      if (!operation) continue;
      Row& row = rows[{call.group.data(), call.operation.data()}];
      row.operation = *operation;
      row.group_size = std::max(row.group_size, call.ranks);
      row.ranks.push_back(call);
    }
  }
  std::vector<CommunicationRow> means;
  for (const auto& [key, row] : rows) means.push_back(MeansOf(key.first, row));
  return means;
}

std::string FormatCommunicationTable(const std::vector<CommunicationRow>& rows) {
  if (rows.empty()) return "";
  std::string text = absl::StrFormat(
      "# communication of the run, as means over ranks\n"
      "#%13s  %5s  %14s  %9s  %10s  %9s  %9s  %9s  %7s  %7s\n"
      "#%13s  %5s  %14s  %9s  %10s  %9s  %9s  %9s  %7s  %7s\n",
      "group", "ranks", "operation", "calls", "size", "time", "transfer", "waiting", "algbw",
      "busbw", "", "", "", "", "(MiB)", "(s)", "(s)", "(s)", "(GB/s)", "(GB/s)");
  for (const CommunicationRow& row : rows) absl::StrAppend(&text, FormatRow(row), "\n");
  return text;
}

}  // namespace megatron
