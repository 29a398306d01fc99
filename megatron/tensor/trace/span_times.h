// Adds up how long the spans of a stream took: every moment once, under the category of the
// innermost span, and every span under its name.
//
//   SpanTimes times(TimeCategory::kHost);
//   const size_t span = times.Find("all-reduce", &call);
//   times.Turn(begin, TimeCategory::kDataParallel);
//   times.Turn(end, TimeCategory::kHost);
//   times.Add(span, end - begin, bytes);
//
// Moments are nanoseconds and never go back. A SpanTimes is used by one thread at a time.
#ifndef MEGATRON_TENSOR_TRACE_SPAN_TIMES_H_
#define MEGATRON_TENSOR_TRACE_SPAN_TIMES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/tensor/trace/time_category.h"

namespace megatron {

// The place of a call between ranks: its group.
struct TraceCall {
  const std::string& group;
  int ranks = 1;      // the group's size
  int64_t bytes = 0;  // bytes that this rank gives
};

// The spans of one name; calls between ranks are of one name and one group.
struct SpanTotal {
  std::string name, group;  // an empty group: not a call between ranks
  int ranks = 1;
  int64_t count = 0, bytes = 0;
  int64_t nanoseconds = 0;
  // The part of it by which calls took longer than the fastest one of about their size until then.
  // A call is slow because its rank waits for others.
  int64_t waiting = 0;
};

class SpanTimes {
 public:
  using ByCategory = std::array<int64_t, kNumTimeCategories>;  // nanoseconds

  SpanTimes(TimeCategory category, int64_t now) : category_(category), since_(now) {}

  // Counts the time up to `now` under the category so far, and the time after it under `next`.
  void Turn(int64_t now, TimeCategory next) {
    by_category_[static_cast<int>(category_)] += now - since_;
    since_ = now;
    category_ = next;
  }
  TimeCategory category() const { return category_; }

  // Returns the place of the spans of this name, a literal, and of the call's group, if it is one.
  size_t Find(const char* name, const TraceCall* call);
  // Counts a span that has ended.
  void Add(size_t place, int64_t nanoseconds, int64_t bytes);

  const ByCategory& by_category() const { return by_category_; }
  std::vector<SpanTotal> Totals() const;

 private:
  struct Entry {
    const char* name = nullptr;
    SpanTotal total;
    std::array<int64_t, 64> fastest = {};  // by the logarithm of the size; 0: there was none
  };

  TimeCategory category_;
  int64_t since_;
  ByCategory by_category_ = {};
  std::vector<Entry> entries_;
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_TRACE_SPAN_TIMES_H_
