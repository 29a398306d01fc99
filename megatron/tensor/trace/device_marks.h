// Events on a GPU's stream at which its work turns from one category of time to another. The host
// reads when the device has reached them, and never waits.
#ifndef MEGATRON_TENSOR_TRACE_DEVICE_MARKS_H_
#define MEGATRON_TENSOR_TRACE_DEVICE_MARKS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/trace/span_times.h"

namespace megatron {

// Marks are numbered from 0 in the order of the stream. Used by one thread at a time, that of the
// stream.
class DeviceMarks {
 public:
  // A span that ends at a mark.
  struct Span {
    size_t place = 0;   // SpanTimes::Find()
    int64_t begin = 0;  // number of the mark at which it began
    int64_t bytes = 0;
  };

  explicit DeviceMarks(const Stream& stream) : stream_(stream) {}

  // Each returns the number of a new mark, behind all that the stream was given. The work after it
  // is of the category. `times` gets the marks that the device has reached, now and then.
  int64_t Begin(TimeCategory next, SpanTimes* times);
  int64_t End(TimeCategory next, const Span& span, SpanTimes* times);

  // Gives `times` all marks that the device has reached.
  void Read(SpanTimes* times);

 private:
  struct Mark {
    std::unique_ptr<CudaEvent> event;  // null once it is read
    TimeCategory next = TimeCategory::kHost;
    bool ends = false;
    Span span;         // ends here, if `ends`
    int64_t time = 0;  // set once it is read
  };

  int64_t Add(Mark mark, SpanTimes* times);
  // Drops the marks that are read and at which no span began that has not been counted.
  void Forget();

  const Stream stream_;
  std::deque<Mark> marks_;
  int64_t first_ = 0;                // number of marks_.front()
  size_t read_ = 0;                  // number of marks at the front that are read
  std::vector<int64_t> open_;        // begins of the spans that have not ended, outermost first
  std::unique_ptr<CudaEvent> base_;  // event of the mark that was read last
  int64_t time_ = 0;  // the time at which the device reached it; the first mark's is 0
  std::vector<std::unique_ptr<CudaEvent>> unused_;
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_TRACE_DEVICE_MARKS_H_
