// Trace: when the parts of a program's work ran, by name.
//
//   Trace trace;                                     // one rank's
//   const Stream stream = trace.Follow(plain, "compute");
//   trace.Start();
//   {
//     const TraceSpan span(stream, "attention", {{"layer", 3}});
//     ... operations on the stream ...
//   }
//   const std::vector<TracedStream> traced = trace.Stop();
//
// A *span* is a piece of work with a beginning and an end; spans of a stream nest. A *count* is a
// number that changes, such as bytes in use. A span is timed twice where the stream is a GPU's: on
// the host, which only enqueues, and by events on the stream, which are read when recording stops,
// so that nobody waits in between. There it also is a range for NVIDIA's profilers.
//
// A span with a category is also *timed*, always: Times() says how much time the stream spent in
// each category, where every moment counts once, and how long the spans of each name took.
//
//   const TraceSpan span(stream, TimeCategory::kOptimizer, "optimizer");
//
// A stream that is not followed has no tracer, and a span on it is one branch; outside Start and
// Stop it is two, and a timed one reads the clock twice. On a GPU's stream a timed span records two
// events, which nobody waits for: Times() counts what the device has reached.
//
// Threads: spans of one stream come from one thread at a time, of different streams from any.
// Start, Stop and Times come from the thread whose CUDA streams are followed; Follow may be called
// any time.
#ifndef MEGATRON_TENSOR_TRACE_TRACE_H_
#define MEGATRON_TENSOR_TRACE_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "megatron/tensor/stream.h"
#include "megatron/tensor/trace/span_times.h"
#include "megatron/tensor/trace/time_category.h"

namespace megatron {

// The subject of a span: a number or a text, under a name that is a literal.
struct TraceDetail {
  TraceDetail(const char* key, int64_t number) : key(key), number(number) {}
  TraceDetail(const char* key, const std::string& text) : key(key), text(&text) {}

  const char* key;
  int64_t number = 0;
  const std::string* text = nullptr;  // null: it is the number
};
using TraceDetails = std::initializer_list<TraceDetail>;

// Times are nanoseconds since recording began.
struct TracedSpan {
  std::string name;
  std::vector<std::pair<const char*, int64_t>> numbers;
  std::vector<std::pair<const char*, std::string>> texts;
  int64_t begin = 0, end = 0;
  int64_t device_begin = 0, device_end = 0;  // whether the row is a GPU's stream
};

struct TracedCount {
  const char* name;
  int64_t time, value;
};

struct TracedStream {
  std::string name;
  bool has_device_times = false;
  std::vector<TracedSpan> spans;  // in the order in which they began
  std::vector<TracedCount> counts;
};

// The timed spans of a stream since it was followed.
struct StreamTimes {
  std::string name;
  SpanTimes::ByCategory by_category = {};
  std::vector<SpanTotal> spans;
};

class Tracer;

class Trace {
 public:
  // A clock gives nanoseconds and never goes back. Null: the machine's.
  using Clock = std::function<int64_t()>;

  // `clock` times the spans of streams on the host.
  explicit Trace(Clock clock = nullptr);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // The stream with a tracer, which lives as long as this, and is recorded from the next Start on.
  // `name` is for the reader. Time outside of timed spans counts as kHost.
  Stream Follow(const Stream& stream, const std::string& name);
  // The same for a stream that works beside another, if that one is followed.
  static Stream FollowBeside(const Stream& followed, const Stream& stream, const std::string& name);

  void Start();
  // Returns what was recorded since Start, by stream, in the order in which streams were followed.
  // Waits for the CUDA streams. A span that has not ended yet ends here.
  std::vector<TracedStream> Stop();

  // Returns the times of all streams until now, in the order in which they were followed.
  std::vector<StreamTimes> Times();

 private:
  const Clock clock_;
  std::mutex mutex_;
  int64_t recordings_ = 0;
  std::vector<std::unique_ptr<Tracer>> tracers_;
};

// A timed span while it lasts.
struct TimedSpan {
  bool counts = false;  // false: it is not timed, or lies within an evaluation
  TimeCategory outer = TimeCategory::kHost;
  size_t place = 0;   // SpanTimes::Find()
  int64_t begin = 0;  // a moment; on a GPU the number of a mark
  int64_t bytes = 0;
};

// Records how much of something there is from now on; `name` is a literal.
void CountInTrace(const Stream& stream, const char* name, int64_t value);

// Lasts from its construction to the end of its block.
class TraceSpan {
 public:
  // `name` is "forward", or "layer 3".
  TraceSpan(const Stream& stream, const char* name, TraceDetails details = {})
      : TraceSpan(stream, name, kNoNumber, details) {}
  TraceSpan(const Stream& stream, const char* name, int64_t number, TraceDetails details = {})
      : tracer_(stream.tracer()) {
    if (tracer_ != nullptr) Begin(name, number, details);
  }
  // These are timed.
  TraceSpan(const Stream& stream, TimeCategory category, const char* name,
            TraceDetails details = {})
      : TraceSpan(stream, category, name, kNoNumber, details) {}
  TraceSpan(const Stream& stream, TimeCategory category, const char* name, int64_t number,
            TraceDetails details = {})
      : tracer_(stream.tracer()) {
    if (tracer_ == nullptr) return;
    Time(category, name, /*call=*/nullptr);
    Begin(name, number, details);
  }
  TraceSpan(const Stream& stream, TimeCategory category, const char* name, const TraceCall& call)
      : tracer_(stream.tracer()) {
    if (tracer_ == nullptr) return;
    Time(category, name, &call);
    Begin(name, kNoNumber, {{"group", call.group}, {"bytes", call.bytes}});
  }
  ~TraceSpan() {
    if (tracer_ != nullptr) End();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  static constexpr int64_t kNoNumber = -1;

  void Begin(const char* name, int64_t number, TraceDetails details);
  void Time(TimeCategory category, const char* name, const TraceCall* call);
  void End();

  Tracer* tracer_;         // null: nobody follows
  int64_t recording_ = 0;  // 0: nothing is recorded
  size_t index_ = 0;
  TimedSpan timed_;
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_TRACE_TRACE_H_
