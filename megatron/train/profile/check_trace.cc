#include "megatron/train/profile/check_trace.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::json;

struct Span {
  int64_t begin = 0, end = 0;  // nanoseconds
  std::string name;
};

absl::Status Bad(const std::string& why, const Json& event) {
  return absl::InvalidArgumentError(absl::StrCat(why, ": ", event.dump()));
}

bool IsInteger(const Json& event, const char* key) {
  return event.contains(key) && event[key].is_number_integer();
}

bool IsTime(const Json& event, const char* key) {
  return event.contains(key) && event[key].is_number() && event[key].get<double>() >= 0;
}

bool HasText(const Json& event, const char* key) {
  return event.contains(key) && event[key].is_string() && !event[key].get<std::string>().empty();
}

// Spans that begin together are sorted with the longest first, which holds the others.
absl::Status CheckNesting(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::vector<Span> open;
  for (const Span& span : spans) {
    while (!open.empty() && open.back().end <= span.begin) open.pop_back();
    if (!open.empty() && span.end > open.back().end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", span.name, "' from ", span.begin, " to ", span.end, " ns overlaps '",
          open.back().name, "' from ", open.back().begin, " to ", open.back().end, " ns"));
    }
    open.push_back(span);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTrace(const std::string& text) {
  const Json file = Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!file.is_object() || !file.contains("traceEvents") || !file["traceEvents"].is_array())
    return absl::InvalidArgumentError("no JSON object with an array traceEvents");
  std::set<int64_t> named_processes;
  std::set<std::pair<int64_t, int64_t>> named_threads;
  std::map<std::pair<int64_t, int64_t>, std::vector<Span>> threads;
  for (const Json& event : file["traceEvents"]) {
    if (!HasText(event, "ph") || !HasText(event, "name") || !IsInteger(event, "pid"))
      return Bad("ph, name or pid is missing", event);
    const int64_t process = event["pid"];
    const std::string kind = event["ph"], name = event["name"];
    const bool is_name = name == "process_name" || name == "thread_name";
    if (is_name && !(event.contains("args") && HasText(event["args"], "name")))
      return Bad("the name is missing", event);
    if (kind == "M" && name == "process_name") named_processes.insert(process);
    if (kind == "M" && name == "thread_name")
      named_threads.insert({process, event.value("tid", 0)});
    if (kind != "X") continue;
    if (!IsInteger(event, "tid") || !IsTime(event, "ts") || !IsTime(event, "dur"))
      return Bad("tid, ts or dur is missing or negative", event);
    const int64_t begin = std::llround(1e3 * event["ts"].get<double>());
    const int64_t length = std::llround(1e3 * event["dur"].get<double>());
    threads[{process, event["tid"].get<int64_t>()}].push_back({begin, begin + length, name});
  }
  if (threads.empty()) return absl::InvalidArgumentError("there are no complete events");
  for (const auto& [thread, spans] : threads) {
    if (named_processes.count(thread.first) == 0 || named_threads.count(thread) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("thread ", thread.second, " of process ",
                                                     thread.first, " or the process has no name"));
    }
    MEGATRON_RETURN_IF_ERROR(CheckNesting(spans));
  }
  return absl::OkStatus();
}

}  // namespace megatron
