// ProcessGroup: the ranks that a layer communicates with, and the operations between them.
//
//   ProcessGroup group = groups.tensor;
//   group.AllReduce(gradient, ReduceOp::kSum, stream);
//   MEGATRON_RETURN_IF_ERROR(group.status());
//
// A ProcessGroup is a cheap value over a shared Communicator. A default-constructed group holds
// this rank alone. Every operation of a group of one rank is the identity, so that code needs no
// special cases. Ranks of a group are numbered from 0.
//
// All ranks call the same operations in the same order. Operations are enqueued on `stream`, and
// what the stream does afterwards sees their results. On a meta stream they check their arguments
// and do nothing. Wrong arguments are our bugs and end the process. What other ranks do wrong, a
// peer that is lost or a call that does not match, becomes the sticky status(), which the training
// loop checks once per step.
//
// Tensors have any dtype. Sums of bf16 and fp16 are formed in fp32 and rounded once, all sums in
// the order of ranks, so that results are the same bits every time and on every rank.
//
// Tensors are contiguous; dim 0 is the dim that is gathered and scattered.
#ifndef MEGATRON_COMM_PROCESS_GROUP_H_
#define MEGATRON_COMM_PROCESS_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "megatron/comm/collective.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"
#include "megatron/tensor/trace/time_category.h"

namespace megatron {

class Communicator;

class ProcessGroup {
 public:
  ProcessGroup() = default;
  explicit ProcessGroup(std::shared_ptr<Communicator> communicator);
  // Returns rank `rank` of a group of any size without its other ranks, for planning. It works on
  // meta streams only.
  static ProcessGroup ForPlanning(int size, int rank, const std::string& name);

  int size() const;
  int rank() const;
  std::string name() const;  // "self" for a group of this rank alone
  absl::Status status() const;
  // Returns null for a group of this rank alone.
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }

  // inout = the reduction of every rank's inout.
  void AllReduce(const Tensor& inout, ReduceOp op, const Stream& stream) const;
  // out = every rank's `in`, in the order of ranks, along dim 0. `in` may be this rank's part of
  // out.
  void AllGather(const Tensor& in, const Tensor& out, const Stream& stream) const;
  // out = this rank's part, along dim 0, of the reduction of every rank's `in`, which is `size`
  // times out. `out` may be this rank's part of `in`.
  void ReduceScatter(const Tensor& in, const Tensor& out, const Stream& stream,
                     ReduceOp op = ReduceOp::kSum) const;
  // Part r of `in`, along dim 0, goes to rank r, and becomes part `rank()` of out there.
  void AllToAll(const Tensor& in, const Tensor& out, const Stream& stream) const;
  // AllToAll with parts of unequal size: send_counts[r] rows of `in` go to rank r, and
  // receive_counts[r] rows of `out` come from it. Counts fill dim 0 of their tensors.
  void AllToAllV(const Tensor& in, absl::Span<const int64_t> send_counts, const Tensor& out,
                 absl::Span<const int64_t> receive_counts, const Stream& stream) const;
  // inout = the root's inout.
  void Broadcast(const Tensor& inout, int root, const Stream& stream) const;
  // Sends and receives all messages at once, so that pairs and rings of ranks cannot deadlock.
  // Messages to one peer arrive in the order given. Only the ranks named take part.
  void Exchange(absl::Span<const Transfer> sends, absl::Span<const Transfer> receives,
                const Stream& stream) const;
  // Returns, on the host, after every rank has entered it.
  void Barrier(const Stream& stream) const;

 private:
  void Run(const CollectiveCall& call, const Stream& stream) const;

  std::shared_ptr<Communicator> communicator_;
  TimeCategory category_ = TimeCategory::kWorld;  // the axis of the group, for traces
};

}  // namespace megatron

#endif  // MEGATRON_COMM_PROCESS_GROUP_H_
