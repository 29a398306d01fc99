#include "tools/report/run_profile.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/train/profile/trace_json.h"

namespace megatron::report {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr int64_t kMs = 1000000;  // nanoseconds

TracedSpan Span(const std::string& name, int64_t begin, int64_t end,
                const std::string& group = "") {
  TracedSpan span;
  span.name = name;
  span.begin = begin * kMs;
  span.end = end * kMs;
  if (!group.empty()) {
    span.texts = {{"group", group}};
    span.numbers = {{"bytes", 1024}};
  }
  return span;
}

// Two steps of 100 ms each: a forward with a call inside, a backward, the update.
TracedStream Steps() {
  TracedStream stream = {"compute"};
  for (int step : {0, 1}) {
    const int64_t at = 100 * step + 5;
    stream.spans.push_back(Span(step == 0 ? "step 11" : "step 12", at, at + 100));
    stream.spans.push_back(Span("forward 0", at, at + 30));
    stream.spans.push_back(Span("decoder.layers.0", at + 5, at + 25));
    stream.spans.push_back(Span("all-reduce", at + 10, at + 20, "tp-0"));
    stream.spans.push_back(Span("backward 0", at + 30, at + 80));
    stream.spans.push_back(Span("optimizer", at + 80, at + 90));
    stream.counts.push_back({"bytes held", at * kMs, 1000 * (step + 1)});
  }
  return stream;
}

// The trainer's passes lie in a span of their own.
TEST(RankProfileTest, PassesArePartsOfTheStepThatHoldsThem) {
  TracedStream stream = {"compute"};
  stream.spans = {Span("step 11", 0, 100),
                  Span("data", 0, 5),
                  Span("forward-backward", 5, 90),
                  Span("wait for other stages", 5, 10),
                  Span("forward 0", 10, 40),
                  Span("decoder.layers.0", 12, 30),
                  Span("all-reduce", 15, 20, "tp-0"),
                  Span("backward 0", 42, 88),
                  Span("optimizer", 90, 98)};
  const auto profile = ParseRankProfile(TraceJson(0, "rank 0 of 1", {stream}));
  ASSERT_THAT(profile, IsOk());
  EXPECT_THAT(profile->milliseconds,
              ElementsAre(Pair("backward", 46), Pair("communication tp", 5), Pair("data", 5),
                          Pair("forward", 25), Pair("optimizer", 8), Pair("other", 6),
                          Pair("wait for other stages", 5)));
  ASSERT_THAT(profile->parts, SizeIs(6));
  EXPECT_EQ(profile->parts[2].name, "forward 0");
  EXPECT_FALSE(profile->parts[2].inside);
  EXPECT_EQ(profile->parts[3].name, "all-reduce");
  EXPECT_TRUE(profile->parts[3].inside);
}

TEST(RankProfileTest, TheKindsOfPartsAddUpToTheStep) {
  const auto profile = ParseRankProfile(TraceJson(3, "rank 3 of 4", {Steps()}));
  ASSERT_THAT(profile, IsOk());
  EXPECT_EQ(profile->rank, 3);
  EXPECT_EQ(profile->steps, 2);
  EXPECT_THAT(profile->milliseconds,
              ElementsAre(Pair("backward", 50), Pair("communication tp", 10), Pair("forward", 20),
                          Pair("optimizer", 10), Pair("other", 10)));
}

TEST(RankProfileTest, ThePartsAreThoseOfTheLastStep) {
  const auto profile = ParseRankProfile(TraceJson(0, "rank 0 of 1", {Steps()}));
  ASSERT_THAT(profile, IsOk());
  ASSERT_THAT(profile->parts, SizeIs(4));
  EXPECT_EQ(profile->parts[0].name, "forward 0");
  EXPECT_DOUBLE_EQ(profile->parts[0].begin, 100);
  EXPECT_EQ(profile->parts[1].kind, "communication tp");
  EXPECT_TRUE(profile->parts[1].inside);
  EXPECT_THAT(profile->counters,
              ElementsAre(Pair("bytes held", ElementsAre(Pair(0, 1000), Pair(100, 2000)))));
}

TEST(RankProfileTest, CallsAreCountedOnEveryStream) {
  TracedStream beside = {"communication"};
  beside.spans = {Span("reduce-scatter", 50, 70, "dp-0"), Span("reduce-scatter", 150, 175, "dp-0")};
  const auto profile = ParseRankProfile(TraceJson(0, "rank 0 of 2", {Steps(), beside}));
  ASSERT_THAT(profile, IsOk());
  ASSERT_THAT(profile->communication, SizeIs(2));
  const CommunicationTotals& totals = profile->communication.at({"reduce-scatter", "dp"});
  EXPECT_EQ(totals.calls, 2);
  EXPECT_EQ(totals.bytes, 2048);
  EXPECT_DOUBLE_EQ(totals.milliseconds, 45);
  EXPECT_EQ(profile->milliseconds.count("communication dp"), 0);  // it hides behind the backward
}

TEST(RankProfileTest, AGpuIsTimedByItsOwnClock) {
  TracedStream stream = Steps();
  stream.has_device_times = true;
  for (TracedSpan& span : stream.spans) {
    span.device_begin = 2 * span.begin;
    span.device_end = 2 * span.end;
  }
  const auto profile = ParseRankProfile(TraceJson(0, "rank 0 of 1", {stream}));
  ASSERT_THAT(profile, IsOk());
  EXPECT_DOUBLE_EQ(profile->milliseconds.at("backward"), 100);
  EXPECT_EQ(profile->communication.at({"all-reduce", "tp"}).calls, 2);
  EXPECT_DOUBLE_EQ(profile->communication.at({"all-reduce", "tp"}).milliseconds, 40);
}

TEST(RankProfileTest, WhatIsNoTraceIsRefused) {
  for (const char* text :
       {"", "{", "[]", "{\"traceEvents\":3}", "{\"traceEvents\":[]}",
        "{\"traceEvents\":[1,null,{\"ph\":\"X\"}]}",
        "{\"traceEvents\":[{\"ph\":\"X\",\"name\":\"step 1\",\"ts\":1e300,\"dur\":1}]}",
        "{\"traceEvents\":[{\"ph\":\"X\",\"name\":\"step 1\",\"ts\":0,\"dur\":-1}]}"}) {
    EXPECT_THAT(ParseRankProfile(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

TEST(RunProfileTest, ReadsTheRanksOfAFolder) {
  MemoryFileSystem fs;
  ASSERT_THAT(fs.CreateDirs("profile"), IsOk());
  const auto write = [&](const std::string& name, const std::string& text) {
    ASSERT_THAT(WriteFileAtomically(fs, "profile/" + name, text), IsOk());
  };
  write("trace_rank_10.json", TraceJson(10, "", {Steps()}));
  write("trace_rank_2.json", TraceJson(2, "", {Steps()}));
  write("trace_rank_3.json", "broken");
  write("notes.txt", "");
  const RunProfile profile = ReadRunProfile(fs, "profile");
  ASSERT_THAT(profile.ranks, SizeIs(2));
  EXPECT_EQ(profile.ranks[0].rank, 2);
  EXPECT_EQ(profile.ranks[1].rank, 10);
  EXPECT_THAT(profile.warnings, ElementsAre(HasSubstr("trace_rank_3.json is left out")));
  EXPECT_THAT(ReadRunProfile(fs, "missing").ranks, SizeIs(0));
}

TEST(RunProfileTest, TheLastPartOfAWindowIsThatOfTheLastIterations) {
  MemoryFileSystem fs;
  ASSERT_THAT(fs.CreateDirs("profile"), IsOk());
  for (const int step : {1, 6, 13}) {
    TracedStream stream = {"compute"};
    stream.spans = {Span(absl::StrCat("step ", step), 0, 100), Span("forward 0", 0, step)};
    const std::string begin = step == 1 ? "" : absl::StrCat("_from_", step);
    ASSERT_THAT(WriteFileAtomically(fs, absl::StrCat("profile/trace_rank_0", begin, ".json"),
                                    TraceJson(0, "rank 0 of 1", {stream})),
                IsOk());
  }
  for (const char* other : {"trace_rank_0_copy.json", "trace_rank_0_from_20x.json"}) {
    ASSERT_THAT(WriteFileAtomically(fs, absl::StrCat("profile/", other), "broken"), IsOk());
  }
  const RunProfile profile = ReadRunProfile(fs, "profile");
  EXPECT_THAT(profile.warnings, SizeIs(0));
  ASSERT_THAT(profile.ranks, SizeIs(1));
  EXPECT_DOUBLE_EQ(profile.ranks[0].milliseconds.at("forward"), 13);
}

}  // namespace
}  // namespace megatron::report
