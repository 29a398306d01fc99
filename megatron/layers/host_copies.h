// HostCopies: copies between a device's memory and page-locked memory of the host, beside
// computing.
//
// Copies to the host are made one after the other, on a stream of their own, and those from the
// host on another, so that a link carries both at once. Each begins when what the device's stream
// has to do at its start is done. On the meta device nothing is copied.
//
// Threads: that of the stream.
#ifndef MEGATRON_LAYERS_HOST_COPIES_H_
#define MEGATRON_LAYERS_HOST_COPIES_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class HostCopies {
 public:
  // A copy that was started.
  struct Copy {
    int direction = 0;
    int64_t number = -1;  // among those of its direction; -1: none
  };

  // `stream` is a device's, or the meta device's.
  explicit HostCopies(const Stream& stream);
  // Waits for the copies.
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // Begins a copy of contiguous tensors, one of which is on the host, behind the copy `after`. The
  // host's tensor is touched by nothing but such copies. What comes from the host comes behind the
  // copies that brought it there. What goes to the host goes where no copy reads that the stream
  // does not await.
  Copy Start(const char* name, const Tensor& in, const Tensor& out, const Copy& after);
  // The stream's operations from now on happen after the copy and those that were started before in
  // its direction.
  void Await(const Copy& copy);
  // The same for all copies so far.
  void AwaitAll();

 private:
  enum Direction { kToHost, kFromHost };
  // Points of the device's stream, at the start of a copy, and of the copies', behind it.
  struct Points {
    std::unique_ptr<CudaEvent> start, end;
  };
  // The copies of a direction.
  struct Line {
    explicit Line(const Stream& compute) : stream(compute) {}
    std::unique_ptr<CudaStream> cuda;  // null on the meta device
    Stream stream;                     // a stream on `cuda`
    // Those of the last copies, which copy n shares with all earlier ones of the same remainder: to
    // wait for a later copy than is needed is no mistake.
    std::vector<Points> points;
    int64_t started = 0;
    int64_t awaited = -1;  // the last copy that the computing stream has waited for
  };
  // What a copy brought to the host.
  struct Sent {
    const char* end = nullptr;
    Copy copy;
  };

  bool IsAwaited(const Copy& copy) const { return copy.number <= lines_[copy.direction].awaited; }
  // Returns the last of the copies that brought any of this memory to the host.
  Copy SenderOf(const Tensor& on_host) const;
  // What `line` does from now on happens after the copy.
  void HoldBack(const Line& line, const Copy& copy) const;

  const Stream stream_;
  std::array<Line, 2> lines_;  // by direction
  // What was brought to the host since all was awaited, by the address of its beginning.
  std::map<const char*, Sent> sent_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_HOST_COPIES_H_
