// What the ranks of a group decide together, because each alone would decide otherwise: whether a
// signal has come, whether time is up, whether all have written their files.
//
//   if (consensus.Any(StopSignal() != 0)) ...    // the same answer on all ranks
#ifndef MEGATRON_TRAIN_CONSENSUS_H_
#define MEGATRON_TRAIN_CONSENSUS_H_

#include "absl/status/status.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/process_group.h"

namespace megatron {

// All ranks make the same calls in the same order, each on one thread. A group of one rank agrees
// with itself at no cost.
class Consensus {
 public:
  explicit Consensus(const ProcessGroup& group) : group_(group), pool_(1) {}

  // Whether it is so on any rank. After a failure of the group: what is so here.
  bool Any(bool mine);

  // The error of the first rank (by number) that has one, with its text cut to a kilobyte; the
  // group's own where that has failed.
  absl::Status FirstError(const absl::Status& mine);

 private:
  ProcessGroup group_;
  ThreadPool pool_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONSENSUS_H_
