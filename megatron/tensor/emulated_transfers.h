// Copies between the host and the emulated device that have been enqueued and not waited for.
//
// A real device does them some time before the host has waited, and nobody knows when. Here the
// host's side of a copy is done as late as it may be, and what the host must not do in between is
// found: memory that is to be received holds NaN until then, and memory that is being sent must
// still be the same.
#ifndef MEGATRON_TENSOR_EMULATED_TRANSFERS_H_
#define MEGATRON_TENSOR_EMULATED_TRANSFERS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "megatron/tensor/emulated_point.h"

namespace megatron {

// Threads: any.
class EmulatedTransfers {
 public:
  // `point` is the one behind the copy. Returns the transfer's number on its stream; 0: none was
  // made.
  int64_t Receive(const void* stream, const EmulatedPoint& point, const void* device, void* host,
                  size_t bytes);
  int64_t Send(const void* stream, const EmulatedPoint& point, const void* host, void* device,
               size_t bytes);
  int64_t Last(const void* stream);

  // The host has waited for the first `number` of the stream.
  void Finish(const void* stream, int64_t number);
  // The host has waited for the point, and so for the transfers of all streams before it.
  void FinishBefore(const EmulatedPoint& point);
  // Waits for all of them; no more may follow.
  void End(const void* stream);

 private:
  struct Transfer {
    bool received = false;
    char* host = nullptr;
    std::vector<char> bytes;
    EmulatedPoint point;
  };
  struct Pending {
    int64_t finished = 0;
    std::deque<Transfer> transfers;
  };
  int64_t Add(const void* stream, Transfer transfer);
  void FinishOverlapping(const Transfer& next);
  static void Finish(const Transfer& transfer);

  std::mutex mutex_;
  std::map<const void*, Pending> pending_;
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_EMULATED_TRANSFERS_H_
