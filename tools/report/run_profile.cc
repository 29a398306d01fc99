#include "tools/report/run_profile.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "megatron/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace megatron::report {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostBytes = int64_t{64} << 20;
constexpr size_t kMostRanks = 64;
constexpr size_t kMostCounters = 8;
constexpr double kMostMilliseconds = 1e12;

struct Span {
  int64_t thread = 0;
  std::string name;
  std::string group;  // the group of a call with other ranks
  double bytes = 0;
  double begin = 0, end = 0;
};

std::string TextOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_string() ? "" : found->get<std::string>();
}

std::optional<double> NumberOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

int64_t IdOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_number_integer() ? 0 : found->get<int64_t>();
}

// "forward 3" is a forward.
std::string WithoutNumber(absl::string_view name) {
  const size_t space = name.rfind(' ');
  int64_t number;
  if (space == name.npos || !absl::SimpleAtoi(name.substr(space + 1), &number))
    return std::string(name);
  return std::string(name.substr(0, space));
}

// "tp-3" is a group of the axis tp.
std::string AxisOf(absl::string_view group) {
  return std::string(group.substr(0, group.find('-')));
}

bool IsStep(const Span& span) { return WithoutNumber(span.name) == "step"; }

// The passes of a step lie within one span, and are its parts as what lies beside that is.
bool HoldsPasses(const Span& span) { return span.name == "forward-backward"; }

class Reader {
 public:
  void ReadEvent(const Json& event) {
    if (!event.is_object()) return;
    const std::string phase = TextOf(event, "ph");
    const auto found = event.find("args");
    const Json arguments = found != event.end() && found->is_object() ? *found : Json::object();
    if (phase == "M" && TextOf(event, "name") == "thread_name") {
      if (absl::EndsWith(TextOf(arguments, "name"), " (host)"))
        hosts_.push_back(IdOf(event, "tid"));
      return;
    }
    const std::optional<double> time = NumberOf(event, "ts");
    if (!time || !(std::abs(*time) < 1e3 * kMostMilliseconds)) return;
    profile_.rank = IdOf(event, "pid");
    if (phase == "X") ReadSpan(event, arguments, *time / 1e3);
    if (phase == "C") ReadCount(TextOf(event, "name"), arguments, *time / 1e3);
  }

  absl::StatusOr<RankProfile> Finish() && {
    std::stable_sort(spans_.begin(), spans_.end(), [](const Span& a, const Span& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    const auto first = std::find_if(spans_.begin(), spans_.end(), IsStep);
    if (first == spans_.end()) return absl::InvalidArgumentError("it has no whole step");
    zero_ = first->begin;
    thread_ = first->thread;
    for (const Span& span : spans_) {
      // A GPU's stream is two threads; the later one has its times.
      if (IsStep(span) && span.begin >= zero_) thread_ = std::max(thread_, span.thread);
    }
    ReadSteps();
    for (const Span& span : spans_) AddCommunication(span);
    for (auto& [name, points] : profile_.counters) {
      std::stable_sort(points.begin(), points.end());
      for (auto& point : points) point.first -= zero_;
    }
    return std::move(profile_);
  }

 private:
  void ReadSpan(const Json& event, const Json& arguments, double begin) {
    const std::optional<double> length = NumberOf(event, "dur");
    if (!length || !(*length >= 0 && *length < 1e3 * kMostMilliseconds)) return;
    Span span;
    span.thread = IdOf(event, "tid");
    span.name = TextOf(event, "name");
    span.group = TextOf(arguments, "group");
    span.bytes = NumberOf(arguments, "bytes").value_or(0);
    span.begin = begin;
    span.end = begin + *length / 1e3;
    spans_.push_back(std::move(span));
  }

  void ReadCount(const std::string& name, const Json& arguments, double time) {
    const std::optional<double> value = NumberOf(arguments, "value");
    if (!value) return;
    if (profile_.counters.size() == kMostCounters && profile_.counters.count(name) == 0) return;
    profile_.counters[name].emplace_back(time, *value);
  }

  // Follows the nesting of the spans of one thread. `open` has those around the current one.
  void ReadSteps() {
    struct Open {
      std::string kind;
      double end;
      bool is_step;
    };
    std::vector<Open> open;
    for (const Span& span : spans_) {
      if (span.thread != thread_) continue;
      while (!open.empty() && open.back().end <= span.begin) open.pop_back();
      if (open.empty()) {
        if (!IsStep(span)) continue;
        ++profile_.steps;
        profile_.parts.clear();
        open.push_back({"other", span.end, true});
        profile_.milliseconds["other"] += span.end - span.begin;
        continue;
      }
      const bool is_part = open.back().is_step, is_call = !span.group.empty();
      const double end = std::min(span.end, open.back().end);
      if (is_part && HoldsPasses(span)) {
        open.push_back({"other", end, true});
        continue;
      }
      const std::string kind = is_call   ? absl::StrCat("communication ", AxisOf(span.group))
                               : is_part ? WithoutNumber(span.name)
                                         : open.back().kind;
      profile_.milliseconds[open.back().kind] -= end - span.begin;
      profile_.milliseconds[kind] += end - span.begin;
      if (is_part || is_call)
        profile_.parts.push_back({span.name, kind, span.begin - zero_, end - zero_, !is_part});
      open.push_back({kind, end, false});
    }
    for (auto& [kind, milliseconds] : profile_.milliseconds)
      milliseconds = std::max(0.0, milliseconds / static_cast<double>(profile_.steps));
  }

  void AddCommunication(const Span& span) {
    const bool is_host = std::find(hosts_.begin(), hosts_.end(), span.thread) != hosts_.end();
    if (span.group.empty() || is_host) return;
    CommunicationTotals& totals = profile_.communication[{span.name, AxisOf(span.group)}];
    ++totals.calls;
    totals.bytes += span.bytes;
    totals.milliseconds += span.end - span.begin;
  }

  RankProfile profile_;
  std::vector<Span> spans_;
  std::vector<int64_t> hosts_;  // threads that only enqueue
  double zero_ = 0;             // begin of the first step
  int64_t thread_ = 0;          // the thread whose spans are the steps' parts
};

absl::StatusOr<RankProfile> ReadFile(FileSystem& fs, const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs, path, kMostBytes));
  return ParseRankProfile(text);
}

}  // namespace

absl::StatusOr<RankProfile> ParseRankProfile(absl::string_view text) {
  const Json file = Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  const auto events = file.is_object() ? file.find("traceEvents") : file.end();
  if (events == file.end() || !events->is_array())
    return absl::InvalidArgumentError("it is no trace: it has no list traceEvents");
  Reader reader;
  for (const Json& event : *events) reader.ReadEvent(event);
  return std::move(reader).Finish();
}

RunProfile ReadRunProfile(FileSystem& fs, const std::string& directory) {
  RunProfile profile;
  const absl::StatusOr<std::vector<std::string>> names = fs.List(directory);
  if (!names.ok()) return profile;
  // The last part of each rank's window, behind the iteration from which it is; 0: the beginning.
  std::map<int, std::pair<int64_t, std::string>> files;
  for (const std::string& name : *names) {
    absl::string_view rank = name;
    if (!absl::ConsumePrefix(&rank, "trace_rank_") || !absl::ConsumeSuffix(&rank, ".json"))
      continue;
    absl::string_view begin = rank;
    rank = rank.substr(0, rank.find('_'));
    begin.remove_prefix(rank.size());
    int number;
    int64_t from = 0;
    if (!absl::SimpleAtoi(rank, &number)) continue;
    if (!begin.empty() &&
        !(absl::ConsumePrefix(&begin, "_from_") && absl::SimpleAtoi(begin, &from)))
      continue;
    const auto [file, is_first] = files.try_emplace(number, from, name);
    if (!is_first && file->second.first < from) file->second = {from, name};
  }
  for (const auto& [rank, part] : files) {
    const std::string& name = part.second;
    if (profile.ranks.size() == kMostRanks) {
      profile.warnings.push_back(
          absl::StrCat("Of ", files.size(), " ranks, the first ", kMostRanks, " are shown."));
      break;
    }
    absl::StatusOr<RankProfile> read = ReadFile(fs, JoinPath(directory, name));
    if (!read.ok()) {
      profile.warnings.push_back(absl::StrCat(name, " is left out: ", read.status().message()));
      continue;
    }
    read->rank = rank;
    profile.ranks.push_back(*std::move(read));
  }
  return profile;
}

}  // namespace megatron::report
