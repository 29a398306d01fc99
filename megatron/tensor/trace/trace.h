// Trace: when the parts of a program's work ran, by name.
//
//   Trace trace;                                     // of a rank
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
// A stream that is not followed has no tracer, and a span on it is one branch; outside Start and
// Stop it is two.
//
// Threads: spans of one stream come from one thread at a time, of different streams from any. Start
// and Stop come from the thread whose CUDA streams are followed; Follow may be called any time.
#ifndef MEGATRON_TENSOR_TRACE_TRACE_H_
#define MEGATRON_TENSOR_TRACE_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "megatron/tensor/stream.h"

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

class Tracer;

class Trace {
 public:
  Trace();
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // The stream with a tracer, which lives as long as this, and is recorded from the next Start on.
  // `name` is for the reader.
  Stream Follow(const Stream& stream, const std::string& name);
  // The same for a stream that works beside another, if that one is followed.
  static Stream FollowBeside(const Stream& followed, const Stream& stream, const std::string& name);

  void Start();
  // Returns what was recorded since Start, by stream, in the order in which streams were followed.
  // Waits for the CUDA streams. A span that has not ended yet ends here.
  std::vector<TracedStream> Stop();

 private:
  std::mutex mutex_;
  int64_t recordings_ = 0;
  std::vector<std::unique_ptr<Tracer>> tracers_;
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
  ~TraceSpan() {
    if (tracer_ != nullptr) End();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  static constexpr int64_t kNoNumber = -1;

  void Begin(const char* name, int64_t number, TraceDetails details);
  void End();

  Tracer* tracer_;         // null: nobody follows
  int64_t recording_ = 0;  // 0: nothing is recorded
  size_t index_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_TRACE_TRACE_H_
