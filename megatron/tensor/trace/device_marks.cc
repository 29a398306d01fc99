#include "megatron/tensor/trace/device_marks.h"

#include <algorithm>
#include <utility>

namespace megatron {
namespace {

constexpr int64_t kMarksBetweenReads = 256;

}  // namespace

int64_t DeviceMarks::Begin(TimeCategory next, SpanTimes* times) {
  Mark mark;
  mark.next = next;
  const int64_t number = Add(std::move(mark), times);
  open_.push_back(number);
  return number;
}

int64_t DeviceMarks::End(TimeCategory next, const Span& span, SpanTimes* times) {
  Mark mark;
  mark.next = next;
  mark.ends = true;
  mark.span = span;
  open_.pop_back();
  return Add(std::move(mark), times);
}

int64_t DeviceMarks::Add(Mark mark, SpanTimes* times) {
  if (unused_.empty()) {
    mark.event = std::make_unique<CudaEvent>(stream_.device().index, /*timed=*/true);
  } else {
    mark.event = std::move(unused_.back());
    unused_.pop_back();
  }
  mark.event->Record(*stream_.cuda());
  marks_.push_back(std::move(mark));
  const int64_t number = first_ + static_cast<int64_t>(marks_.size()) - 1;
  if (number % kMarksBetweenReads == 0) Read(times);
  return number;
}

void DeviceMarks::Read(SpanTimes* times) {
  for (; read_ < marks_.size() && marks_[read_].event->Reached(); ++read_) {
    Mark& mark = marks_[read_];
    if (base_ != nullptr) {
      time_ += CudaEvent::Nanoseconds(*base_, *mark.event);
      unused_.push_back(std::move(base_));
    }
    base_ = std::move(mark.event);
    mark.time = time_;
    times->Turn(time_, mark.next);
    if (mark.ends)
      times->Add(mark.span.place, time_ - marks_[mark.span.begin - first_].time, mark.span.bytes);
  }
  Forget();
}

void DeviceMarks::Forget() {
  int64_t needed = first_ + static_cast<int64_t>(read_);
  if (!open_.empty()) needed = std::min(needed, open_.front());
  for (size_t i = read_; i < marks_.size(); ++i) {
    if (marks_[i].ends) needed = std::min(needed, marks_[i].span.begin);
  }
  for (; first_ < needed; ++first_, --read_) marks_.pop_front();
}

}  // namespace megatron
