// ProcessGroup: the ranks that a layer talks to, and how.
//
// A cheap value over a shared Communicator. Default-constructed it is this rank alone, and then
// every operation is the identity; so is every operation of size 1, and code needs no cases. Ranks
// of a group are numbered from 0.
//
// All ranks call the same operations in the same order. Operations are enqueued on `stream`; the
// Event is reached when they are done. On a meta stream they check their arguments and do nothing.
// Wrong arguments are bugs of ours and end the process; what other ranks do wrong, a peer that is
// lost or a call that does not match, becomes the sticky status(), which the training loop checks
// once per step.
//
// Any dtype. Sums of bf16 and fp16 are formed in fp32 and rounded once, all sums in the order of
// ranks, so that results are the same bits every time and on every rank.
//
// Tensors are contiguous; `dim 0` is the dim that is gathered and scattered.
#ifndef MEGATRON_COMM_PROCESS_GROUP_H_
#define MEGATRON_COMM_PROCESS_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "megatron/comm/communicator.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class ProcessGroup {
 public:
  ProcessGroup() = default;
  explicit ProcessGroup(std::shared_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)) {}
  // Rank `rank` of a group of any size that nobody else is in, for planning: it works on meta
  // streams only.
  static ProcessGroup ForPlanning(int size, int rank, const std::string& name);

  int size() const { return communicator_ ? communicator_->size() : 1; }
  int rank() const { return communicator_ ? communicator_->rank() : 0; }
  std::string name() const { return communicator_ ? communicator_->name() : "self"; }
  absl::Status status() const { return communicator_ ? communicator_->status() : absl::OkStatus(); }
  // Null for a group of this rank alone.
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }

  // inout = the reduction of every rank's inout.
  Event AllReduce(const Tensor& inout, ReduceOp op, const Stream& stream) const;
  // out = every rank's `in`, in the order of ranks, along dim 0. `in` may be this rank's part of
  // out.
  Event AllGather(const Tensor& in, const Tensor& out, const Stream& stream) const;
  // out = this rank's part, along dim 0, of the reduction of every rank's `in`, which is `size`
  // times out. `out` may be this rank's part of `in`.
  Event ReduceScatter(const Tensor& in, const Tensor& out, const Stream& stream,
                      ReduceOp op = ReduceOp::kSum) const;
  // Part r of `in`, along dim 0, goes to rank r, and becomes part `rank()` of out there.
  Event AllToAll(const Tensor& in, const Tensor& out, const Stream& stream) const;
  // As AllToAll with parts of unequal size: send_counts[r] rows of `in` go to rank r, and
  // receive_counts[r] rows of `out` come from it. Counts fill dim 0 of their tensors.
  Event AllToAllV(const Tensor& in, absl::Span<const int64_t> send_counts, const Tensor& out,
                  absl::Span<const int64_t> receive_counts, const Stream& stream) const;
  // inout = the root's.
  Event Broadcast(const Tensor& inout, int root, const Stream& stream) const;
  // Sends and receives all of these at once, so that pairs and rings of ranks cannot deadlock.
  // Messages to one peer arrive in the order given. Only the ranks named take part.
  Event Exchange(absl::Span<const Transfer> sends, absl::Span<const Transfer> receives,
                 const Stream& stream) const;
  // Returns, on the host, after every rank has entered it.
  void Barrier(const Stream& stream) const;

 private:
  Event Run(const CollectiveCall& call, const Stream& stream) const;

  std::shared_ptr<Communicator> communicator_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_PROCESS_GROUP_H_
