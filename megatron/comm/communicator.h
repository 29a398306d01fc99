// Communicator: what a backend (threads, TCP, NCCL) implements. Layers use ProcessGroup instead,
// which checks arguments and holds a Communicator.
//
// Vocabulary. A *group* is an ordered list of ranks; *rank* is a number within it. A *call* is one
// operation with its buffers (collective.h).
//
// Ordering. All ranks of a group make the same collective calls in the same order. kExchange alone
// is not a collective: it concerns the ranks that it names, and messages from one rank to another
// are matched in the order given. It may wait until every one of its messages is received, so
// callers must not rely on buffering.
//
// Errors are sticky: after the first failure in any group of a world, that call and all later ones
// return without doing anything and status() says why. The contents of buffers are then undefined.
// No call waits longer than the backend's deadline.
//
// Threads: a Communicator belongs to one thread, except Abort, which any thread may call.
#ifndef MEGATRON_COMM_COMMUNICATOR_H_
#define MEGATRON_COMM_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/comm/collective.h"
#include "megatron/tensor/device.h"

namespace megatron {

class Stream;

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int size() const = 0;
  virtual int rank() const = 0;
  virtual const std::string& name() const = 0;

  // Returns whether Run takes tensors of this device type. The caller copies other tensors to the
  // host.
  virtual bool TakesTensorsOf(DeviceType type) const { return type == DeviceType::kCpu; }

  // Runs or enqueues a call whose arguments have been checked. What `stream` does afterwards sees
  // the results.
  virtual void Run(const CollectiveCall& call, const Stream& stream) = 0;

  // Cuts the ranks into groups, each listed in its own order, and returns the one that holds this
  // rank. Collective over all ranks, which give the same arguments. A group's name in messages is
  // `name` and its number in the partition, "tp-1".
  virtual absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<std::vector<int>>& partition, const std::string& name) = 0;

  virtual absl::Status status() const = 0;
  // Makes every pending and later call of this communicator's whole world, on every rank, end with
  // `reason`, unless something failed before.
  virtual void Abort(const absl::Status& reason) = 0;
};

// CHECKs that a Split's partition names each of `size` ranks once.
void CheckPartition(const std::vector<std::vector<int>>& partition, int size);

}  // namespace megatron

#endif  // MEGATRON_COMM_COMMUNICATOR_H_
