#include "megatron/tensor/trace/trace.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/emulated_cuda.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

void Work() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

class TraceTest : public testing::Test {
 protected:
  TraceTest() : pool_(1), plain_(Stream::Cpu(&pool_)) {}

  ThreadPool pool_;
  Stream plain_;
  Trace trace_;
};

std::vector<std::string> NamesOf(const TracedStream& stream) {
  std::vector<std::string> names;
  for (const TracedSpan& span : stream.spans) names.push_back(span.name);
  return names;
}

TEST_F(TraceTest, SpansNestAndKnowWhatTheyAreAbout) {
  const Stream stream = trace_.Follow(plain_, "compute");
  trace_.Start();
  {
    const std::string group = "tp-0";
    const TraceSpan outer(stream, "layer", 3, {{"tokens", 64}});
    Work();
    const TraceSpan inner(stream, "all-reduce", {{"group", group}, {"bytes", 1 << 20}});
    Work();
  }
  const std::vector<TracedStream> streams = trace_.Stop();
  ASSERT_EQ(streams.size(), 1u);
  EXPECT_EQ(streams[0].name, "compute");
  EXPECT_FALSE(streams[0].has_device_times);
  ASSERT_THAT(NamesOf(streams[0]), ElementsAre("layer 3", "all-reduce"));
  const TracedSpan &outer = streams[0].spans[0], &inner = streams[0].spans[1];
  EXPECT_THAT(outer.numbers, ElementsAre(Pair("tokens", 64)));
  EXPECT_THAT(inner.texts, ElementsAre(Pair("group", "tp-0")));
  EXPECT_THAT(inner.numbers, ElementsAre(Pair("bytes", 1 << 20)));
  EXPECT_GE(inner.begin - outer.begin, 2'000'000);
  EXPECT_GE(inner.end - inner.begin, 2'000'000);
  EXPECT_GE(outer.end, inner.end);
}

TEST_F(TraceTest, OnlyWhatBeginsBetweenStartAndStopIsRecorded) {
  const Stream stream = trace_.Follow(plain_, "compute");
  {
    const TraceSpan before(stream, "before");
    trace_.Start();
    const TraceSpan within(stream, "within");
  }
  CountInTrace(stream, "bytes", 5);
  const TracedStream first = trace_.Stop().at(0);
  EXPECT_THAT(NamesOf(first), ElementsAre("within"));
  ASSERT_EQ(first.counts.size(), 1u);
  EXPECT_EQ(first.counts[0].value, 5);
  { const TraceSpan between(stream, "between"); }
  CountInTrace(stream, "bytes", 6);
  trace_.Start();
  const TracedStream second = trace_.Stop().at(0);
  EXPECT_THAT(second.spans, IsEmpty());
  EXPECT_THAT(second.counts, IsEmpty());
}

TEST_F(TraceTest, ASpanThatOutlastsTheRecordingEndsWithIt) {
  const Stream stream = trace_.Follow(plain_, "compute");
  trace_.Start();
  std::optional<TraceSpan> late;
  late.emplace(stream, "late");
  Work();
  const TracedStream first = trace_.Stop().at(0);
  ASSERT_THAT(NamesOf(first), ElementsAre("late"));
  EXPECT_GE(first.spans[0].end - first.spans[0].begin, 2'000'000);
  trace_.Start();
  const TraceSpan other(stream, "other");
  late.reset();  // not the other's end
  Work();
  const TracedStream second = trace_.Stop().at(0);
  ASSERT_THAT(NamesOf(second), ElementsAre("other"));
  EXPECT_GE(second.spans[0].end - second.spans[0].begin, 2'000'000);
}

TEST_F(TraceTest, AStreamThatNobodyFollowsRecordsNothing) {
  trace_.Start();
  const TraceSpan span(Trace::FollowBeside(plain_, plain_, "beside"), "span");
  CountInTrace(plain_, "bytes", 1);
  EXPECT_THAT(trace_.Stop(), IsEmpty());
}

TEST_F(TraceTest, StreamsOfOtherThreadsMayBeBusyWhenItStops) {
  const Stream stream = trace_.Follow(plain_, "compute");
  const Stream beside = Trace::FollowBeside(stream, plain_, "communication");
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    while (!stop) const TraceSpan span(beside, "reduce-scatter");
  });
  size_t spans = 0;
  for (int i = 0; i < 100 || spans == 0; ++i) {
    trace_.Start();
    std::this_thread::yield();
    const std::vector<TracedStream> streams = trace_.Stop();
    ASSERT_EQ(streams.size(), 2u);
    for (const TracedSpan& span : streams[1].spans) EXPECT_LE(span.begin, span.end);
    spans += streams[1].spans.size();
  }
  stop = true;
  thread.join();
}

// A clock that the test moves.
class TimedSpanTest : public testing::Test {
 protected:
  TimedSpanTest() : pool_(1), plain_(Stream::Cpu(&pool_)), trace_([this] { return now_; }) {}

  int64_t In(const StreamTimes& times, TimeCategory category) {
    return times.by_category[static_cast<int>(category)];
  }
  static const SpanTotal& Named(const StreamTimes& times, const std::string& name) {
    for (const SpanTotal& total : times.spans) {
      if (total.name == name) return total;
    }
    ADD_FAILURE() << name;
    static const SpanTotal none;
    return none;
  }

  ThreadPool pool_;
  Stream plain_;
  int64_t now_ = 1000;
  Trace trace_;
};

TEST_F(TimedSpanTest, AMomentCountsForTheInnermostAndASpanForItsWholeTime) {
  const Stream stream = trace_.Follow(plain_, "compute");
  now_ += 1;
  {
    const TraceSpan step(stream, TimeCategory::kOther, "step", 7);
    now_ += 2;
    const TraceSpan forward(stream, TimeCategory::kCompute, "forward", 0, {{"chunk", 0}});
    now_ += 30;
    const TraceSpan layer(stream, "layer", 3);
    now_ += 10;
    {
      const std::string group = "tp-0";
      const TraceSpan call(stream, TimeCategory::kTensorParallel, "all-reduce",
                           TraceCall{group, 2, 64});
      now_ += 400;
    }
    now_ += 5;
    const StreamTimes during = trace_.Times().at(0);
    EXPECT_EQ(In(during, TimeCategory::kCompute), 45);
    EXPECT_EQ(Named(during, "forward").count, 0);
  }
  now_ += 5000;
  const StreamTimes times = trace_.Times().at(0);
  EXPECT_EQ(times.name, "compute");
  EXPECT_EQ(In(times, TimeCategory::kHost), 5001);
  EXPECT_EQ(In(times, TimeCategory::kOther), 2);
  EXPECT_EQ(In(times, TimeCategory::kCompute), 45);
  EXPECT_EQ(In(times, TimeCategory::kTensorParallel), 400);
  EXPECT_EQ(Named(times, "step").nanoseconds, 447);
  EXPECT_EQ(Named(times, "forward").nanoseconds, 445);
  EXPECT_EQ(Named(times, "all-reduce").bytes, 64);
  EXPECT_EQ(Named(times, "all-reduce").group, "tp-0");
  EXPECT_EQ(times.spans.size(), 3u);
}

TEST_F(TimedSpanTest, NothingIsToldApartWithinAnEvaluation) {
  const Stream stream = trace_.Follow(plain_, "compute");
  {
    const TraceSpan evaluate(stream, TimeCategory::kEvaluation, "evaluate");
    now_ += 3;
    const TraceSpan forward(stream, TimeCategory::kCompute, "forward", 0);
    now_ += 40;
  }
  const TraceSpan forward(stream, TimeCategory::kCompute, "forward", 0);
  now_ += 500;
  const StreamTimes times = trace_.Times().at(0);
  EXPECT_EQ(In(times, TimeCategory::kEvaluation), 43);
  EXPECT_EQ(In(times, TimeCategory::kCompute), 500);
}

TEST_F(TimedSpanTest, WhatIsDoneBesideAnEvaluationIsNotCounted) {
  const Stream stream = trace_.Follow(plain_, "compute");
  const Stream beside = Trace::FollowBeside(stream, plain_, "communication");
  const auto communicate = [&] {
    const TraceSpan call(beside, TimeCategory::kPipelineParallel, "exchange", 0);
    now_ += 7;
  };
  {
    const TraceSpan evaluate(stream, TimeCategory::kEvaluation, "evaluate");
    communicate();
    {
      const TraceSpan forward(stream, TimeCategory::kCompute, "forward", 0);
      communicate();
    }
    communicate();
  }
  EXPECT_TRUE(trace_.Times().at(1).spans.empty());
  communicate();
  EXPECT_EQ(In(trace_.Times().at(1), TimeCategory::kPipelineParallel), 7);
}

TEST_F(TraceTest, TimesAreReadWhileOtherThreadsAreInSpans) {
  const Stream stream = trace_.Follow(plain_, "compute");
  const Stream beside = Trace::FollowBeside(stream, plain_, "communication");
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    const std::string group = "dp-0";
    for (int64_t i = 0; !stop; ++i)
      const TraceSpan span(beside, TimeCategory::kDataParallel, i % 2 == 0 ? "all-gather" : "send",
                           TraceCall{group, 2, i});
  });
  int64_t last = 0;
  for (int i = 0; i < 100 || last == 0; ++i) {
    const std::vector<StreamTimes> times = trace_.Times();
    ASSERT_EQ(times.size(), 2u);
    const int64_t now = times[1].by_category[static_cast<int>(TimeCategory::kDataParallel)];
    EXPECT_GE(now, last);
    last = now;
  }
  stop = true;
  thread.join();
}

// More marks than are kept between two readings.
TEST_F(TraceTest, ADevicesSpansAreTimedByItsEvents) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "there is no GPU";
  CudaStream cuda(0);
  const Stream stream = trace_.Follow(Stream::Cuda(0, &cuda), "compute");
  {
    const TraceSpan step(stream, TimeCategory::kOther, "step", 1);
    for (int i = 0; i < 300; ++i) {
      const TraceSpan span(stream, TimeCategory::kCompute, "forward", i);
      if (i % 100 == 0) Work();
    }
  }
  cuda.Synchronize();
  const StreamTimes times = trace_.Times().at(0);
  ASSERT_EQ(times.spans.size(), 2u);
  EXPECT_EQ(times.spans[0].name, "step");
  EXPECT_EQ(times.spans[0].count, 1);
  EXPECT_EQ(times.spans[1].count, 300);
  const int64_t compute = times.by_category[static_cast<int>(TimeCategory::kCompute)];
  EXPECT_EQ(times.spans[1].nanoseconds, compute);
  EXPECT_EQ(times.spans[0].nanoseconds,
            compute + times.by_category[static_cast<int>(TimeCategory::kOther)]);
  if (CudaFacts(0).name != kEmulatedDeviceName) return;
  EXPECT_GE(compute, 3 * 2'000'000);
}

// The emulated device has done its work when the call returns: its times lie within the host's.
TEST_F(TraceTest, SpansOfADeviceAreTimedOnItsStreamToo) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "there is no GPU";
  CudaStream cuda(0);
  const Stream stream = trace_.Follow(Stream::Cuda(0, &cuda), "compute");
  for (int recording = 0; recording < 2; ++recording) {
    trace_.Start();
    {
      const TraceSpan outer(stream, "outer");
      Work();
      const TraceSpan inner(stream, "inner");
      Work();
    }
    const TracedStream traced = trace_.Stop().at(0);
    EXPECT_TRUE(traced.has_device_times);
    ASSERT_EQ(traced.spans.size(), 2u);
    const TracedSpan &outer = traced.spans[0], &inner = traced.spans[1];
    EXPECT_GT(outer.device_begin, 0);
    EXPECT_LE(outer.device_begin, inner.device_begin);
    EXPECT_LE(inner.device_end, outer.device_end);
    if (CudaFacts(0).name != kEmulatedDeviceName) continue;
    EXPECT_NEAR(outer.device_begin, outer.begin, 1e6);
    EXPECT_GE(inner.device_end - inner.device_begin, 1'000'000);
  }
}

}  // namespace
}  // namespace megatron
