// The part of Trace that serves one stream.
#ifndef MEGATRON_TENSOR_TRACE_TRACER_H_
#define MEGATRON_TENSOR_TRACE_TRACER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/trace/device_marks.h"
#include "megatron/tensor/trace/span_times.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {

class Tracer {
 public:
  using Clock = std::chrono::steady_clock;

  // `clock` is null for the machine's. `main` is the tracer of the stream beside which this one is,
  // or null; what is done while that stream evaluates is not counted here either.
  Tracer(Trace* trace, const Tracer* main, const Stream& stream, const std::string& name,
         const Trace::Clock& clock);

  Trace* trace() const { return trace_; }

  // Recordings are numbered from 1; 0: there is none now.
  int64_t recording() const { return recording_.load(std::memory_order_relaxed); }
  // `zero` is a moment.
  void Start(int64_t recording, int64_t zero);
  TracedStream Stop();
  // Returns the time by the clock, in nanoseconds.
  int64_t Moment() const;

  // The place of a span; a recording of 0 means none.
  struct Place {
    int64_t recording = 0;
    size_t index = 0;
  };
  Place Begin(std::string name, TraceDetails details);
  void End(const Place& place);
  void Count(const char* name, int64_t value);

  TimedSpan BeginTimed(TimeCategory category, const char* name, const TraceCall* call);
  void EndTimed(const TimedSpan& span);
  StreamTimes Times();

 private:
  struct Moments {
    explicit Moments(int device) : begin(device, true), end(device, true) {}
    CudaEvent begin, end;
  };

  bool evaluates() const { return evaluates_.load(std::memory_order_relaxed); }
  bool on_device() const { return stream_.device().type == DeviceType::kCuda; }
  // Returns the time since the recording began.
  int64_t Now() const { return Moment() - zero_; }
  void EndOpenSpans();
  void ReadDeviceTimes();

  Trace* const trace_;
  const Tracer* const main_;
  const Stream stream_;
  const std::string name_;
  const Trace::Clock clock_;
  std::atomic<int64_t> recording_{0};
  std::atomic<bool> evaluates_{false};  // within a span of an evaluation

  std::mutex mutex_;  // Start and Stop may come while another thread is in a span
  int64_t zero_ = 0;
  TracedStream traced_;
  std::deque<Moments> moments_;      // one entry a span; kept for the next recording
  std::unique_ptr<CudaEvent> base_;  // reached at base_time_
  int64_t base_time_ = 0;

  std::mutex times_mutex_;                       // Times may come while another thread is in a span
  TimeCategory category_ = TimeCategory::kHost;  // category of the work that is given now
  SpanTimes times_;
  std::unique_ptr<DeviceMarks> marks_;  // null on the host
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_TRACE_TRACER_H_
