#include "tools/report/run_ranks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace megatron::report {
namespace {

using Json = nlohmann::json;

constexpr double kMost = 1e15;  // the largest number that is taken
constexpr size_t kMostCategories = 32;

// Returns the member; null if there is none.
const Json& Member(const Json& object, const char* key) {
  static const auto* const none = new Json;
  if (!object.is_object()) return *none;
  const auto found = object.find(key);
  return found == object.end() ? *none : *found;
}

double Number(const Json& value) {
  const double number = value.is_number() ? value.get<double>() : 0;
  return std::isfinite(number) ? std::clamp(number, 0.0, kMost) : 0;
}
double Number(const Json& object, const char* key) { return Number(Member(object, key)); }

std::string Text(const Json& object, const char* key) {
  const Json& text = Member(object, key);
  return text.is_string() ? text.get<std::string>() : "";
}

// Returns the members of a list, at most so many.
std::vector<Json> List(const Json& object, const char* key, size_t most) {
  const Json& list = Member(object, key);
  if (!list.is_array()) return {};
  return {list.begin(), list.begin() + static_cast<int64_t>(std::min(list.size(), most))};
}

RankRow ReadRank(const Json& object) {
  RankRow rank;
  rank.host = Text(object, "host");
  rank.stage = static_cast<int64_t>(Number(object, "stage"));
  const Json& seconds = Member(object, "seconds");
  if (!seconds.is_object()) return rank;
  for (const auto& [category, value] : seconds.items()) {
    if (rank.seconds.size() < kMostCategories) rank.seconds[category] = Number(value);
  }
  return rank;
}

CallRow ReadCall(const Json& object) {
  CallRow call;
  call.group = Text(object, "group");
  call.operation = Text(object, "operation");
  call.ranks = Number(object, "ranks");
  call.calls = Number(object, "calls");
  call.bytes = Number(object, "bytes");
  call.time = Number(object, "time");
  call.transfer = Number(object, "transfer");
  call.waiting = Number(object, "waiting");
  call.algorithm_bandwidth = Number(object, "algbw");
  call.bus_bandwidth = Number(object, "busbw");
  return call;
}

void ReadIntervals(const Json& file, RunRanks* run) {
  for (const Json& interval : List(file, "intervals", RunRanks::kMostIntervals)) {
    const std::vector<Json> work = List(interval, "work", run->ranks.size());
    if (work.size() != run->ranks.size()) continue;
    run->intervals.push_back(Number(interval, "last"));
    for (size_t rank = 0; rank < work.size(); ++rank)
      run->ranks[rank].work.push_back(Number(work[rank]));
  }
}

}  // namespace

absl::StatusOr<RunRanks> ParseRunRanks(absl::string_view text) {
  const Json file = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  RunRanks run;
  for (const Json& rank : List(file, "ranks", RunRanks::kMostRanks))
    run.ranks.push_back(ReadRank(rank));
  if (run.ranks.size() < 2) return absl::InvalidArgumentError("it has no times of ranks");
  run.iteration = Number(file, "iteration");
  ReadIntervals(file, &run);
  for (const Json& call : List(file, "communication", RunRanks::kMostRows))
    run.calls.push_back(ReadCall(call));
  const Json& what_if = Member(file, "what_if");
  run.measured = Number(what_if, "measured");
  run.replayed = Number(what_if, "replayed");
  for (const Json& saving : List(what_if, "savings", RunRanks::kMostRows))
    run.savings.push_back({Number(saving, "seconds"), Text(saving, "condition")});
  return run;
}

}  // namespace megatron::report
