// The times of one rank between two log lines, told apart by what it did, and its memory.
//
//   RankTimesMeter meter(&trace, {stage, stages});         // on every rank
//   ...
//   std::vector<RankTimes> all = GatherRankTimes(meter.Take(), world);
#ifndef MEGATRON_TRAIN_METRICS_RANK_TIMES_H_
#define MEGATRON_TRAIN_METRICS_RANK_TIMES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "megatron/comm/process_group.h"
#include "megatron/tensor/trace/time_category.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/train/metrics/timers.h"

namespace megatron {

// Ranks send each other its bytes. Times are nanoseconds.
struct RankTimes {
  // Every moment counts once. Of a pipeline's communication, the part that is waiting counts as
  // kBubble: the time by which exchanges took longer than the fastest one of their size, and the
  // broadcast of the loss. With several stages so does the waiting of calls of all ranks, which end
  // a step. Of the time that computing waits for messages beside it, that part is waiting which
  // exceeds their transfer: the end of a message, which is not hidden, is its transfer.
  std::array<int64_t, kNumTimeCategories> by_category = {};
  // Communication on a thread or stream of its own, less the time for which computing waited for
  // it.
  int64_t hidden = 0;
  std::array<int64_t, kNumTimers> timers = {};
  int64_t stage = 0;  // the rank's pipeline stage
  // Memory by the ledger, as it is, at its peak, and as it was planned; and of the rank's GPU, that
  // which any process has taken, and all; 0 on the CPU.
  int64_t held_bytes = 0, peak_bytes = 0, planned_bytes = 0;
  int64_t device_used_bytes = 0, device_bytes = 0;
  std::array<char, 64> host = {};  // name of the machine, ended by a 0

  int64_t operator[](TimeCategory category) const {
    return by_category[static_cast<int>(category)];
  }
  int64_t total() const;
  int64_t communication() const;
  // The rank's own work: computing, the update, data, and what is not told apart.
  int64_t work() const;
};

// Used by the thread that the trace's CUDA streams belong to.
class RankTimesMeter {
 public:
  struct Place {
    int stage = 0, stages = 1;  // this rank's stage, and how many there are
  };

  // The trace's first stream is the one that computes. `trace` must outlive this.
  RankTimesMeter(Trace* trace, const Place& place);

  // Returns the times since the last call, or since the construction. Memory is left at 0.
  RankTimes Take();

 private:
  // Times since the trace began. Messages beside computing are neither hidden nor waiting yet.
  struct Sums {
    RankTimes times;
    // Communication beside computing, and the time for which computing waited for it.
    int64_t beside = 0, waited = 0;
    // The same of messages between stages, beside being the transfer alone.
    int64_t stages_beside = 0, stages_waited = 0;
  };
  Sums SinceTheStart() const;

  Trace* const trace_;
  const Place place_;
  Sums last_;
};

// Returns what all ranks give, by rank; after a failure of the group only what this one gives.
std::vector<RankTimes> GatherRankTimes(const RankTimes& mine, const ProcessGroup& world);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_RANK_TIMES_H_
