#include "megatron/tensor/trace/trace.h"

#include <utility>

#include "megatron/tensor/trace/tracer.h"

namespace megatron {

Trace::Trace(Clock clock) : clock_(std::move(clock)) {}
Trace::~Trace() = default;

Stream Trace::Follow(const Stream& stream, const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tracers_.push_back(std::make_unique<Tracer>(this, /*main=*/nullptr, stream, name, clock_));
  return stream.TracedBy(tracers_.back().get());
}

Stream Trace::FollowBeside(const Stream& followed, const Stream& stream, const std::string& name) {
  if (followed.tracer() == nullptr) return stream;
  Trace* const trace = followed.tracer()->trace();
  const std::lock_guard<std::mutex> lock(trace->mutex_);
  trace->tracers_.push_back(
      std::make_unique<Tracer>(trace, followed.tracer(), stream, name, trace->clock_));
  return stream.TracedBy(trace->tracers_.back().get());
}

void Trace::Start() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++recordings_;
  const int64_t zero = tracers_.empty() ? 0 : tracers_.front()->Moment();
  for (const auto& tracer : tracers_) tracer->Start(recordings_, zero);
}

std::vector<TracedStream> Trace::Stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<TracedStream> streams;
  for (const auto& tracer : tracers_) streams.push_back(tracer->Stop());
  return streams;
}

std::vector<StreamTimes> Trace::Times() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<StreamTimes> times;
  for (const auto& tracer : tracers_) times.push_back(tracer->Times());
  return times;
}

void CountInTrace(const Stream& stream, const char* name, int64_t value) {
  if (stream.tracer() != nullptr) stream.tracer()->Count(name, value);
}

void TraceSpan::Begin(const char* name, int64_t number, TraceDetails details) {
  if (tracer_->recording() == 0) return;
  std::string text = name;
  if (number != kNoNumber) text += " " + std::to_string(number);
  const Tracer::Place place = tracer_->Begin(std::move(text), details);
  recording_ = place.recording;
  index_ = place.index;
}

void TraceSpan::Time(TimeCategory category, const char* name, const TraceCall* call) {
  timed_ = tracer_->BeginTimed(category, name, call);
}

void TraceSpan::End() {
  if (recording_ != 0) tracer_->End({recording_, index_});
  if (timed_.counts) tracer_->EndTimed(timed_);
}

}  // namespace megatron
