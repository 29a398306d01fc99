// Checks the order of operations on the streams of the emulated device.
//
// A real device may run operations of two streams in any order that events and the host's waits
// allow. The emulated one runs them at once, in the order of the host, so that a missing event
// would change nothing. Therefore each operation says here which memory it reads and writes. The
// program ends if two operations of different streams touch the same memory, one of them writes,
// and neither an event nor a wait of the host puts one behind the other. An event that the host
// only asks for (CudaEvent::Reached) orders nothing, since on a real device the answer may be no.
//
// The streams that one thread has made, those of a rank, are compared with each other.
#ifndef MEGATRON_TENSOR_EMULATED_ORDER_H_
#define MEGATRON_TENSOR_EMULATED_ORDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megatron/tensor/emulated_clock.h"
#include "megatron/tensor/emulated_point.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class CudaStream;

// Bytes of the device's memory, or of page-locked memory of the host that a copy was enqueued for.
struct EmulatedAccess {
  const char* begin = nullptr;
  const char* end = nullptr;
  bool writes = false;
};
// Returns the bytes from the tensor's first element to its last one.
EmulatedAccess ReadOf(const Tensor& tensor);
EmulatedAccess WriteOf(const Tensor& tensor);

// Streams are known by their handles.
void StartOrder(const void* stream);
void EndOrder(const void* stream);
// Returns the point behind all operations of the stream so far.
EmulatedPoint PointOf(const void* stream);
// The stream's later operations happen after the point.
void OrderAfter(const EmulatedPoint& point, const void* stream);
// A mistake that tests make on purpose: a stream does not wait for an event. Waits of a stream with
// no operation between them count as one.
struct LostWait {
  int64_t number = -1;  // the missing one, counted from 0; < 0: none is missing
  int64_t waits = 0;    // how many there were
  // A stream's number of operations until its last wait, and that wait's number.
  std::map<int64_t, std::pair<int64_t, int64_t>> last;
};
// Counts the calls that this thread makes of OrderAfter from now on, but for those that order
// nothing that was not in order before, and makes the missing one do nothing. `lost` lives as long
// as this thread.
void LoseWait(LostWait* lost);
// All that this thread enqueues from now on happens after the point.
void OrderHostAfter(const EmulatedPoint& point);
// Nothing that was enqueued uses this memory any longer.
void ForgetMemory(const char* begin, int64_t bytes);
// Adds an operation to the stream, and ends the program if it is in no order with another one.
void OrderOperation(const CudaStream& stream, const std::string& name,
                    const std::vector<EmulatedAccess>& accesses, const EmulatedCost& cost = {});

// What all streams and the host do from now on is written down here; null: nowhere. The program has
// one rank.
void RecordEmulatedWork(EmulatedRecord* record);
// Only for that record: the host has waited for the point, has done work, or has started a transfer
// of a disk, behind which the returned point is. Work beside what the host does comes after a point
// alone.
void RecordHostWait(const EmulatedPoint& point);
void RecordHostWork(const std::string& name, const EmulatedCost& cost);
EmulatedPoint RecordDiskTransfer(const std::string& name, const EmulatedCost& cost);
EmulatedPoint RecordWorkBeside(const std::string& name, const EmulatedCost& cost,
                               const EmulatedPoint& after);

// An operation whose operands are known and not what it does with them: those whose bytes it
// changes are the ones that it writes.
//
//   OrderedOperation operation(stream, "add");
//   ... EmulatedOperand(x) for each of its tensors ...
//   operation.Start();
//   ... the operation itself ...
class OrderedOperation {
 public:
  OrderedOperation(const CudaStream& stream, std::string name);
  ~OrderedOperation();
  OrderedOperation(const OrderedOperation&) = delete;
  OrderedOperation& operator=(const OrderedOperation&) = delete;

  // Says that the operation does so many of floating-point numbers.
  void set_operations(double operations) { cost_.operations = operations; }
  void Start();

 private:
  friend Tensor EmulatedOperand(const Tensor& tensor);
  struct Operand {
    EmulatedAccess access;
    const char* accessible;
    std::string before;  // its bytes
  };

  const CudaStream& stream_;
  const std::string name_;
  const bool checked_;
  EmulatedCost cost_;
  std::vector<Operand> operands_;
};

// Returns EmulatedView(tensor), which is an operand of the operation that this thread makes now, if
// any.
Tensor EmulatedOperand(const Tensor& tensor);

}  // namespace megatron

#endif  // MEGATRON_TENSOR_EMULATED_ORDER_H_
