#include "megatron/tensor/trace/tracer.h"

#include <string>
#include <utility>

namespace megatron {
namespace {

constexpr int64_t kOpen = -1;

// Returns "all-reduce group=tp-0 bytes=4096".
std::string Text(const TracedSpan& span) {
  std::string text = span.name;
  for (const auto& [key, value] : span.texts) text += std::string(" ") + key + "=" + value;
  for (const auto& [key, value] : span.numbers)
    text += std::string(" ") + key + "=" + std::to_string(value);
  return text;
}

}  // namespace

Tracer::Tracer(Trace* trace, const Tracer* main, const Stream& stream, const std::string& name,
               const Trace::Clock& clock)
    : trace_(trace),
      main_(main),
      stream_(stream),
      name_(name),
      clock_(clock),
      times_(TimeCategory::kHost, on_device() ? 0 : Moment()) {
  if (on_device()) marks_ = std::make_unique<DeviceMarks>(stream);
}

void Tracer::Start(int64_t recording, int64_t zero) {
  const std::lock_guard<std::mutex> lock(mutex_);
  zero_ = zero;
  traced_ = TracedStream();
  traced_.name = name_;
  traced_.has_device_times = on_device();
  if (on_device()) {
    // An event with nothing before it is reached as soon as it is recorded.
    if (base_ == nullptr) base_ = std::make_unique<CudaEvent>(stream_.device().index, true);
    stream_.cuda()->Synchronize();
    base_->Record(*stream_.cuda());
    stream_.cuda()->Synchronize();
    base_time_ = Now();
  }
  recording_.store(recording, std::memory_order_relaxed);
}

TracedStream Tracer::Stop() {
  recording_.store(0, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  EndOpenSpans();
  if (on_device()) ReadDeviceTimes();
  return std::exchange(traced_, TracedStream());
}

void Tracer::EndOpenSpans() {
  const int64_t now = Now();
  for (size_t i = 0; i < traced_.spans.size(); ++i) {
    if (traced_.spans[i].end != kOpen) continue;
    traced_.spans[i].end = now;
    if (on_device()) moments_[i].end.Record(*stream_.cuda());
  }
}

void Tracer::ReadDeviceTimes() {
  stream_.cuda()->Synchronize();
  for (size_t i = 0; i < traced_.spans.size(); ++i) {
    TracedSpan& span = traced_.spans[i];
    span.device_begin = base_time_ + CudaEvent::Nanoseconds(*base_, moments_[i].begin);
    span.device_end = base_time_ + CudaEvent::Nanoseconds(*base_, moments_[i].end);
  }
}

Tracer::Place Tracer::Begin(std::string name, TraceDetails details) {
  TracedSpan span;
  span.name = std::move(name);
  span.end = kOpen;
  for (const TraceDetail& detail : details) {
    if (detail.text == nullptr) {
      span.numbers.emplace_back(detail.key, detail.number);
    } else {
      span.texts.emplace_back(detail.key, *detail.text);
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const Place place = {recording(), traced_.spans.size()};
  if (place.recording == 0) return place;
  if (on_device()) {
    PushCudaRange(Text(span));
    if (place.index == moments_.size()) moments_.emplace_back(stream_.device().index);
    moments_[place.index].begin.Record(*stream_.cuda());
  }
  span.begin = Now();
  traced_.spans.push_back(std::move(span));
  return place;
}

void Tracer::End(const Place& place) {
  if (place.recording == 0) return;
  if (on_device()) PopCudaRange();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (recording() != place.recording) return;
  traced_.spans[place.index].end = Now();
  if (on_device()) moments_[place.index].end.Record(*stream_.cuda());
}

void Tracer::Count(const char* name, int64_t value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (recording() != 0) traced_.counts.push_back({name, Now(), value});
}

int64_t Tracer::Moment() const {
  if (clock_) return clock_();
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

TimedSpan Tracer::BeginTimed(TimeCategory category, const char* name, const TraceCall* call) {
  const std::lock_guard<std::mutex> lock(times_mutex_);
  TimedSpan span;
  if (category_ == TimeCategory::kEvaluation || (main_ != nullptr && main_->evaluates()))
    return span;
  span.counts = true;
  span.outer = std::exchange(category_, category);
  if (category == TimeCategory::kEvaluation) evaluates_.store(true, std::memory_order_relaxed);
  span.place = times_.Find(name, call);
  if (call != nullptr) span.bytes = call->bytes;
  if (on_device()) {
    span.begin = marks_->Begin(category, &times_);
  } else {
    span.begin = Moment();
    times_.Turn(span.begin, category);
  }
  return span;
}

void Tracer::EndTimed(const TimedSpan& span) {
  const std::lock_guard<std::mutex> lock(times_mutex_);
  category_ = span.outer;
  evaluates_.store(category_ == TimeCategory::kEvaluation, std::memory_order_relaxed);
  if (on_device()) {
    marks_->End(span.outer, {span.place, span.begin, span.bytes}, &times_);
    return;
  }
  const int64_t now = Moment();
  times_.Turn(now, span.outer);
  times_.Add(span.place, now - span.begin, span.bytes);
}

StreamTimes Tracer::Times() {
  const std::lock_guard<std::mutex> lock(times_mutex_);
  if (on_device()) {
    marks_->Read(&times_);
  } else {
    times_.Turn(Moment(), times_.category());
  }
  return {name_, times_.by_category(), times_.Totals()};
}

}  // namespace megatron
