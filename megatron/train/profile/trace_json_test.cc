#include "megatron/train/profile/trace_json.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::json;

TracedSpan Span(const std::string& name, int64_t begin, int64_t end) {
  TracedSpan span;
  span.name = name;
  span.begin = begin;
  span.end = end;
  return span;
}

std::vector<Json> EventsOf(const std::string& text, const std::string& kind) {
  std::vector<Json> events;
  const Json file = Json::parse(text);
  for (const Json& event : file.at("traceEvents")) {
    if (event.at("ph") == kind) events.push_back(event);
  }
  return events;
}

TEST(TraceJsonTest, ASpanIsACompleteEventInMicroseconds) {
  TracedStream stream = {"compute"};
  stream.spans = {Span("forward 0", 1500, 9500)};
  stream.spans[0].numbers = {{"chunk", 1}};
  stream.spans[0].texts = {{"group", "tp-0"}};
  const std::string text = TraceJson(3, "rank 3 of 8", {stream});
  const std::vector<Json> spans = EventsOf(text, "X");
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0], Json::parse(R"({"ph": "X", "pid": 3, "tid": 1, "ts": 1.5, "dur": 8.0,
      "name": "forward 0", "args": {"group": "tp-0", "chunk": 1}})"));
  const std::vector<Json> names = EventsOf(text, "M");
  ASSERT_EQ(names.size(), 3u);
  EXPECT_EQ(names[0].at("args").at("name"), "rank 3 of 8");
  EXPECT_EQ(names[2].at("args").at("name"), "compute");
}

TEST(TraceJsonTest, AStreamOfADeviceIsTwoThreads) {
  TracedStream device = {"compute", /*has_device_times=*/true};
  device.spans = {Span("attention", 1000, 2000)};
  device.spans[0].device_begin = 5000;
  device.spans[0].device_end = 9000;
  TracedStream worker = {"communication"};
  worker.spans = {Span("all-reduce", 0, 1000)};
  const std::vector<Json> spans = EventsOf(TraceJson(0, "rank 0 of 1", {device, worker}), "X");
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].at("tid"), 1);
  EXPECT_EQ(spans[0].at("ts"), 1.0);
  EXPECT_EQ(spans[1].at("tid"), 2);
  EXPECT_EQ(spans[1].at("ts"), 5.0);
  EXPECT_EQ(spans[1].at("dur"), 4.0);
  EXPECT_EQ(spans[2].at("tid"), 3);
}

TEST(TraceJsonTest, CountsAreCounters) {
  TracedStream stream = {"compute"};
  stream.counts = {{"bytes held", 2000, int64_t{3} << 40}};
  const std::vector<Json> counts = EventsOf(TraceJson(0, "rank 0 of 1", {stream}), "C");
  ASSERT_EQ(counts.size(), 1u);
  EXPECT_EQ(counts[0].at("ts"), 2.0);
  EXPECT_EQ(counts[0].at("args").at("value"), int64_t{3} << 40);
}

TEST(TraceJsonTest, AnyNameMakesValidJson) {
  TracedStream stream = {"a \"stream\""};
  stream.spans = {Span("line\nbreak \\ \xff", 0, 1)};
  EXPECT_EQ(EventsOf(TraceJson(0, "rank\t0", {stream}), "X").size(), 1u);
}

}  // namespace
}  // namespace megatron
