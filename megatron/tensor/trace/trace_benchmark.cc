// The cost of a span: on a stream that nobody follows, on one that is followed while nothing is
// recorded, plain and timed, and while it is recorded, when it is read back in batches of about a
// step's size.
#include <cstdint>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "megatron/base/thread_pool.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

void Spans(benchmark::State& state, const Stream& stream) {
  int64_t layer = 0;
  for (auto _ : state) {
    const TraceSpan span(stream, "layer", ++layer, {{"bytes", layer}});
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations());
}

void BM_NobodyFollows(benchmark::State& state) {
  ThreadPool pool(1);
  Spans(state, Stream::Cpu(&pool));
}
BENCHMARK(BM_NobodyFollows);

void BM_NothingIsRecorded(benchmark::State& state) {
  ThreadPool pool(1);
  Trace trace;
  Spans(state, trace.Follow(Stream::Cpu(&pool), "compute"));
}
BENCHMARK(BM_NothingIsRecorded);

void BM_Timed(benchmark::State& state) {
  ThreadPool pool(1);
  Trace trace;
  const Stream stream = trace.Follow(Stream::Cpu(&pool), "compute");
  int64_t layer = 0;
  for (auto _ : state) {
    const TraceSpan span(stream, TimeCategory::kCompute, "forward", ++layer);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Timed);

// As many names as a step has.
void BM_TimedCall(benchmark::State& state) {
  ThreadPool pool(1);
  Trace trace;
  const Stream stream = trace.Follow(Stream::Cpu(&pool), "compute");
  for (const char* name : {"step", "data", "forward-backward", "forward", "backward", "measure",
                           "read ahead", "reduce gradients", "optimizer", "update"})
    const TraceSpan span(stream, TimeCategory::kCompute, name);
  const std::string group = "tp-0";
  for (auto _ : state) {
    const TraceSpan span(stream, TimeCategory::kTensorParallel, "all-reduce",
                         TraceCall{group, 8, 1 << 20});
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_TimedCall);

void BM_Recorded(benchmark::State& state) {
  constexpr int kSpansOfAStep = 1000;
  ThreadPool pool(1);
  Trace trace;
  const Stream stream = trace.Follow(Stream::Cpu(&pool), "compute");
  for (auto _ : state) {
    trace.Start();
    for (int64_t i = 0; i < kSpansOfAStep; ++i)
      const TraceSpan span(stream, "layer", i, {{"bytes", i}});
    benchmark::DoNotOptimize(trace.Stop());
  }
  state.SetItemsProcessed(state.iterations() * kSpansOfAStep);
}
BENCHMARK(BM_Recorded);

}  // namespace
}  // namespace megatron
