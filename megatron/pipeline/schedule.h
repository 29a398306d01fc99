// Pipeline schedules as data: for each stage, the list of what it computes, in order.
//
// Vocabulary. A *stage* is a rank of the pipeline group. Each stage holds `chunks` parts of the
// model, one after the other of which make the whole: the number of a part in it is its *position*.
// A micro-batch passes all stages once per chunk. A backward may be split into the part that the
// stage before waits for (kBackwardInput) and the part that nobody waits for (kBackwardWeight).
//
// A schedule says nothing about messages: they follow from it (stage_plan.h), and so do its time
// and its correctness (check_schedule.h).
#ifndef MEGATRON_PIPELINE_SCHEDULE_H_
#define MEGATRON_PIPELINE_SCHEDULE_H_

#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace megatron {

enum class ActionKind { kForward, kBackward, kBackwardInput, kBackwardWeight };

struct Action {
  ActionKind kind = ActionKind::kForward;
  int microbatch = 0;
  int chunk = 0;

  friend bool operator==(const Action& a, const Action& b) {
    return a.kind == b.kind && a.microbatch == b.microbatch && a.chunk == b.chunk;
  }
  // F3, B3, I3, W3; F3.1 for chunk 1.
  friend std::ostream& operator<<(std::ostream& out, const Action& action);
};

// The stages on which the model's parts lie.
enum class PartOrder {
  kRoundRobin,    // each chunk goes from the first stage to the last
  kBackAndForth,  // every other chunk goes back: with two, the first stage holds both ends
};

struct Place {
  int stage = 0;
  int chunk = 0;

  friend bool operator==(const Place& a, const Place& b) {
    return a.stage == b.stage && a.chunk == b.chunk;
  }
};
int PositionOf(PartOrder order, int stages, const Place& place);
Place PlaceOf(PartOrder order, int stages, int position);

// The costs of one chunk of one stage, in any unit; a whole backward costs both of its parts.
struct ActionCosts {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
};

// Those of each part of the model: an encoder's cost other than a decoder's.
class PartCosts {
 public:
  PartCosts(const ActionCosts& of_all = {}) : costs_(1, of_all) {}
  // One entry for each position in the model.
  explicit PartCosts(std::vector<ActionCosts> costs) : costs_(std::move(costs)) {}

  const ActionCosts& At(int position) const { return costs_[costs_.size() == 1 ? 0 : position]; }
  ActionCosts Mean() const;

 private:
  std::vector<ActionCosts> costs_;
};

struct Schedule {
  int stages = 1;
  int chunks = 1;
  int microbatches = 1;
  std::vector<std::vector<Action>> actions;  // one list for each stage
  PartOrder order = PartOrder::kRoundRobin;
  // The position of the first part that has parameters to train. The parts before it have no
  // backward: the lists name it all the same, so that a stage waits for the others at the same
  // places, but it takes no time, and no gradients are sent to these parts.
  int first_trained = 0;

  int positions() const { return stages * chunks; }
  int PositionAt(int stage, int chunk) const { return PositionOf(order, stages, {stage, chunk}); }
};

// All forwards, then all backwards. Every micro-batch is in flight at once.
// Huang et al. 2019, "GPipe".
std::vector<Action> PlanGPipe(int stage, int stages, int microbatches);

// With one chunk 1F1B: forwards until the pipeline is full, then one forward and one backward in
// turn, so that stage s holds at most stages - s micro-batches. Narayanan et al. 2019, "PipeDream"
// (with flush).
//
// With several chunks a stage interleaved 1F1B: a bubble smaller by the number of chunks for more
// messages. Micro-batches go in groups of `group` (0: as many as there are stages) through one
// chunk after the other. The last group may be smaller, but not smaller than the number of stages.
// Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters".
struct InterleavedOptions {
  int stages = 1;
  int microbatches = 1;
  int chunks = 1;
  int group = 0;
};
std::vector<Action> PlanInterleaved(int stage, InterleavedOptions options);

// 1F1B with split backwards: stage s puts each weight's part off by s micro-batches, so that what
// the stage before waits for comes sooner and the weights' parts fill the end. A third of 1F1B's
// bubble where the three parts take as long; no stage holds more than `stages` micro-batches, what
// 1F1B's first stage holds. Qi et al. 2023, "Zero Bubble Pipeline Parallelism", its ZB-H1.
std::vector<Action> PlanZeroBubble(int stage, int stages, int microbatches);

// Forwards alone, for evaluation; in any order of parts.
std::vector<Action> PlanForwards(int stage, const InterleavedOptions& options);

// The same for all stages.
Schedule GPipeSchedule(int stages, int microbatches);
Schedule InterleavedSchedule(const InterleavedOptions& options);
Schedule ZeroBubbleSchedule(int stages, int microbatches);
Schedule ForwardSchedule(const InterleavedOptions& options,
                         PartOrder order = PartOrder::kRoundRobin);

}  // namespace megatron

#endif  // MEGATRON_PIPELINE_SCHEDULE_H_
