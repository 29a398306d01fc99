// StagePlan: everything one stage does in a step, messages and memory included, from a schedule.
//
// Messages. An output is sent right after the action that made it, in one exchange with all that
// this stage receives then. A receiver takes a message in its first pause after it was sent, by the
// time of CheckSchedule, perhaps long before it is used. On every stage actions and messages thus
// follow one common order in time, and so exchanges that wait for their partners cannot wait in a
// circle; and messages of one pair of stages are sent and received in the same order. All stages
// compute this from the whole schedule alike.
//
// Memory. An item has a *slot* of its chunk from its forward until its backward is complete, which
// is where the Stage keeps activations. Its input, which may come earlier, has an *input slot* from
// when it is received, until then too, and the gradient of its output a *gradient slot* until its
// backward, or the first part of it. A backward in two parts has a *deferred slot* from the first
// to the end of the second, where the Stage keeps what that needs. Always the lowest free number of
// the chunk is taken. What is sent is gone after its exchange: no slots are planned for it.
//
// Parts without backward (Schedule::first_trained). The slots of an item end with its forward, and
// the steps of its backward do nothing.
#ifndef MEGATRON_PIPELINE_STAGE_PLAN_H_
#define MEGATRON_PIPELINE_STAGE_PLAN_H_

#include <vector>

#include "megatron/pipeline/schedule.h"

namespace megatron {

struct Message {
  int peer = 0;           // the other stage
  bool gradient = false;  // whether it is the gradient of an output; else it is an input
  int microbatch = 0;
  int chunk = 0;  // this stage's chunk that it is for (a receive), or that made it (a send)
  int slot = -1;  // for a receive, the input or gradient slot into which it goes

  friend bool operator==(const Message& a, const Message& b) {
    return a.peer == b.peer && a.gradient == b.gradient && a.microbatch == b.microbatch &&
           a.chunk == b.chunk && a.slot == b.slot;
  }
};

// A step: either one exchange of messages or, if it has none, one action.
struct Step {
  std::vector<Message> sends, receives;

  Action action;
  int slot = -1;
  int input_slot = -1;     // set for a chunk with an edge before it
  int gradient_slot = -1;  // set for a backward with an edge behind it, except for its second part
  int deferred_slot = -1;  // set for a backward in two parts
  // The slot of the neighbouring chunk into which the result goes directly, where that chunk is on
  // this stage too: an input slot of the next chunk (forward), a gradient slot of the one before
  // (backward).
  int result_slot = -1;

  bool is_exchange() const { return !sends.empty() || !receives.empty(); }
};

struct StagePlan {
  int stages = 1;
  int stage = 0;
  int microbatches = 1;
  std::vector<Step> steps;
  // The numbers of slots, by chunk.
  std::vector<int> slots, input_slots, gradient_slots, deferred_slots;

  std::vector<int> positions;  // position in the model, by chunk
  int first_trained = 0;       // Schedule::first_trained

  int chunks() const { return static_cast<int>(slots.size()); }
  bool has_input(int chunk) const { return positions[chunk] > 0; }
  bool has_output(int chunk) const { return positions[chunk] < stages * chunks() - 1; }
  // Returns the position of the part in front of the edge that the message crosses.
  int EdgeOf(const Message& message, bool is_sent) const {
    return positions[message.chunk] - (is_sent == message.gradient ? 1 : 0);
  }
  bool has_backward(int chunk) const { return positions[chunk] >= first_trained; }
  // Whether the gradient of the chunk's input goes to the part before it.
  bool has_input_gradient(int chunk) const { return positions[chunk] > first_trained; }
  // Whether the step is an action without work.
  bool IsEmpty(const Step& step) const {
    return !step.is_exchange() && step.action.kind != ActionKind::kForward &&
           !has_backward(step.action.chunk);
  }
};

// The schedule must pass CheckSchedule. `costs` say when messages are sent, by its clock.
StagePlan PlanStage(const Schedule& schedule, int stage, const PartCosts& costs = {});
// The plans of all stages.
std::vector<StagePlan> PlanStages(const Schedule& schedule, const PartCosts& costs = {});

}  // namespace megatron

#endif  // MEGATRON_PIPELINE_STAGE_PLAN_H_
