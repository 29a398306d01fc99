// Decisions that the ranks of a group make together, because each alone would decide otherwise:
// whether a signal has come, whether time is up, whether all have written their files.
//
//   if (consensus.Any(StopSignal() != 0)) ...    // the same answer on all ranks
#ifndef MEGATRON_TRAIN_TRAINER_CONSENSUS_H_
#define MEGATRON_TRAIN_TRAINER_CONSENSUS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "megatron/comm/process_group.h"

namespace megatron {

// All ranks make the same calls in the same order, each on one thread. A group of one rank agrees
// with itself at no cost.
class Consensus {
 public:
  explicit Consensus(const ProcessGroup& group) : group_(group) {}

  // Returns whether it is so on any rank, or, after a failure of the group, here.
  bool Any(bool mine);

  // The greatest of all ranks' numbers; after a failure of the group this rank's.
  int64_t Max(int64_t mine);

  // The error of the first rank (by number) that has one, with its text cut to a kilobyte; the
  // group's own where that has failed.
  absl::Status FirstError(const absl::Status& mine);

  // The same with the error's exit code and, for an error of another rank than the first, its
  // number in front. A failure of the group means that a rank was lost, or hangs.
  absl::Status FirstFailure(const absl::Status& mine);

  // Returns whether all ranks give the same text, and true after a failure of the group.
  bool Same(absl::string_view mine);

  // The texts of all ranks, of any length, in the order of ranks; this rank's after a failure of the
  // group.
  std::string OfAll(absl::string_view mine);

  // The text of the first rank, of any length; this rank's after a failure of the group.
  std::string OfFirst(absl::string_view mine);

 private:
  struct RankError {
    int rank = -1;  // -1: no rank has an error
    absl::Status status;
  };
  // The error of the first rank that has one, its text cut to a kilobyte.
  RankError FirstRankError(const absl::Status& mine);

  ProcessGroup group_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_CONSENSUS_H_
