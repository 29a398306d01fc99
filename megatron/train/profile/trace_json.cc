#include "megatron/train/profile/trace_json.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::ordered_json;

double Microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-3; }

class Writer {
 public:
  explicit Writer(int rank) : rank_(rank) {}

  void Name(const char* what, int thread, const std::string& name) {
    Add({{"ph", "M"}, {"pid", rank_}, {"tid", thread}, {"name", what}, {"args", {{"name", name}}}});
  }
  void SortProcess() {
    Add({{"ph", "M"},
         {"pid", rank_},
         {"name", "process_sort_index"},
         {"args", {{"sort_index", rank_}}}});
  }
  void Span(int thread, const TracedSpan& span, int64_t begin, int64_t end) {
    Json arguments = Json::object();
    for (const auto& [key, text] : span.texts) arguments[key] = text;
    for (const auto& [key, number] : span.numbers) arguments[key] = number;
    Add({{"ph", "X"},
         {"pid", rank_},
         {"tid", thread},
         {"ts", Microseconds(begin)},
         {"dur", Microseconds(end - begin)},
         {"name", span.name},
         {"args", std::move(arguments)}});
  }
  void Count(const TracedCount& count) {
    Add({{"ph", "C"},
         {"pid", rank_},
         {"ts", Microseconds(count.time)},
         {"name", count.name},
         {"args", {{"value", count.value}}}});
  }

  const std::string& events() const { return events_; }

 private:
  void Add(const Json& event) {
    const std::string text =
        event.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
    absl::StrAppend(&events_, events_.empty() ? "" : ",\n", text);
  }

  const int rank_;
  std::string events_;
};

std::string Events(const TracedRank& rank) {
  Writer writer(rank.rank);
  writer.Name("process_name", 0, rank.title);
  writer.SortProcess();
  int thread = 0;
  for (const TracedStream& stream : rank.streams) {
    ++thread;
    const bool device = stream.has_device_times;
    writer.Name("thread_name", thread, stream.name + (device ? " (host)" : ""));
    for (const TracedSpan& span : stream.spans) writer.Span(thread, span, span.begin, span.end);
    for (const TracedCount& count : stream.counts) writer.Count(count);
    if (!device) continue;
    ++thread;
    writer.Name("thread_name", thread, stream.name + " (GPU)");
    for (const TracedSpan& span : stream.spans)
      writer.Span(thread, span, span.device_begin, span.device_end);
  }
  return writer.events();
}

}  // namespace

std::string TraceJson(const std::vector<TracedRank>& ranks) {
  std::vector<std::string> events;
  for (const TracedRank& rank : ranks) events.push_back(Events(rank));
  return absl::StrCat("{\"traceEvents\":[\n", absl::StrJoin(events, ",\n"), "\n]}\n");
}

std::string TraceJson(int rank, const std::string& title,
                      const std::vector<TracedStream>& streams) {
  return TraceJson(std::vector<TracedRank>{{rank, title, streams}});
}

}  // namespace megatron
