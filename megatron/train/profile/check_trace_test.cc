#include "megatron/train/profile/check_trace.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/profile/trace_json.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

std::string TraceOf(const std::vector<std::pair<int64_t, int64_t>>& times) {
  TracedStream stream = {"compute"};
  for (const auto& [begin, end] : times) {
    TracedSpan span;
    span.name = "pass";
    span.begin = begin;
    span.end = end;
    stream.spans.push_back(span);
  }
  return TraceJson(3, "rank 3 of 8", {stream});
}

TEST(CheckTraceTest, SpansMayTouchOrLieWithinEachOther) {
  EXPECT_THAT(CheckTrace(TraceOf({{0, 1001}, {1001, 2002}, {1001, 1500}, {1500, 1600}})), IsOk());
}

TEST(CheckTraceTest, SpansThatOverlapAreNamed) {
  EXPECT_THAT(CheckTrace(TraceOf({{0, 1001}, {1000, 2000}})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("from 1000 to 2000 ns overlaps 'pass' from 0 to 1001 ns")));
}

TEST(CheckTraceTest, WhatIsMissingIsNamed) {
  const std::string whole = TraceOf({{0, 1000}});
  for (const char* part : {"\"ph\"", "\"pid\"", "\"tid\"", "\"ts\"", "\"dur\"", "process_name",
                           "thread_name", "traceEvents"}) {
    EXPECT_THAT(CheckTrace(absl::StrReplaceAll(whole, {{part, "\"x\""}})),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << part;
  }
  EXPECT_THAT(CheckTrace(TraceOf({})), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
