// KeptRank: what a process keeps in memory while the ranks of its run change.
//
// With copies of shards (trainer/shard_copies.h) the ranks of a new world cut the state anew. Until
// all of them have all of that, it may not be whole in those that are left after another loss. So
// a rank also keeps the state that its world began with, in the cut before.
#ifndef MEGATRON_TRAIN_RANK_KEPT_RANK_H_
#define MEGATRON_TRAIN_RANK_KEPT_RANK_H_

#include <optional>
#include <string>

#include "megatron/train/metrics/step_metrics.h"
#include "megatron/train/trainer/kept_state.h"

namespace megatron {

struct KeptRank {
  std::optional<KeptState> state;   // what the process's rank had last
  std::optional<KeptState> before;  // what its world began with, where others may have that alone
  std::optional<StepMetrics> last_step;  // the last one that was made
  std::string unwritten_metrics;         // GoingOn::unwritten_metrics

  // Returns what this process has of a state; null: nothing.
  KeptState* Of(const StateInMemory& wanted);
  // Keeps what the process's rank has in place of all before.
  void Keep(std::optional<KeptState> mine);
  // The same beside what it has of the state that its world began with.
  void KeepBeside(const StateInMemory& begun, std::optional<KeptState> mine);
  void ForgetState() { Keep(std::nullopt); }
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RANK_KEPT_RANK_H_
