// Calls of a process group beside computing, as PyTorch's async_op makes them.
//
//   group = *WithAsyncCalls(group, stream);   // once, on all of its ranks
//   const AsyncCall call = StartAsync(
//       group, stream, TimeCategory::kTensorParallel,
//       [=](const ProcessGroup& beside, const Stream& lane) {
//         beside.AllReduce(gradient, ReduceOp::kSum, lane);
//       });
//   ... work on `stream` that needs other tensors ...
//   call.Wait();
//
// Such calls run on a lane (comm_lane.h) of their own, over a communicator of their own, in the
// order in which they were started. Between StartAsync and Wait nobody writes what they read or
// touches what they write. Every AsyncCall is waited for. Calls that are made on the group itself
// run as on any other, and in no order with these.
//
// Where a group has no lane, StartAsync makes the calls on `stream` before it returns: on the meta
// device, in a group of one rank, and where CUDA tensors travel through the host's memory, for
// which the host waits anyway.
//
// Threads: a group's calls come from one thread.
#ifndef MEGATRON_COMM_OVERLAP_ASYNC_GROUP_H_
#define MEGATRON_COMM_OVERLAP_ASYNC_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "megatron/comm/overlap/comm_lane.h"
#include "megatron/comm/process_group.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/trace/time_category.h"

namespace megatron {

// The spans of a computing stream while it waits for a lane: for calls between stages of a
// pipeline, and for all others.
inline constexpr char kWaitForStages[] = "wait for other stages";
inline constexpr char kWaitForLane[] = "wait for communication";

// Calls that were started. A copy stands for the same calls.
class AsyncCall {
 public:
  AsyncCall() = default;  // no calls
  AsyncCall(CommLane* lane, int64_t job, const Stream& compute, TimeCategory category)
      : lane_(lane), job_(job), compute_(compute), category_(category) {}

  // Makes everything that is done on the computing stream from now on happen after the calls. The
  // time that it waits counts to the category.
  void Wait() const;

 private:
  CommLane* lane_ = nullptr;
  int64_t job_ = 0;
  Stream compute_ = Stream::Meta();
  TimeCategory category_ = TimeCategory::kWorld;
};

// Returns the group with a lane beside the stream `compute`, or the group itself where lanes are of
// no use. Collective over the group. The stream must outlive the result.
absl::StatusOr<ProcessGroup> WithAsyncCalls(const ProcessGroup& group, const Stream& compute);

// Starts `calls`, which are given the group and the stream to use. `compute` is the stream that the
// group was made for.
AsyncCall StartAsync(const ProcessGroup& group, const Stream& compute, TimeCategory category,
                     std::function<void(const ProcessGroup&, const Stream&)> calls);

// Returns a lane beside `compute`: a stream on CUDA, else a thread. `name` is for the reader of a
// trace.
std::unique_ptr<CommLane> MakeCommLane(const Stream& compute, const std::string& name);
// Returns a group of the same ranks for the calls of a lane; its name ends with "overlap" and a
// number. Collective over the group.
absl::StatusOr<ProcessGroup> CloneForLane(const ProcessGroup& group);

}  // namespace megatron

#endif  // MEGATRON_COMM_OVERLAP_ASYNC_GROUP_H_
