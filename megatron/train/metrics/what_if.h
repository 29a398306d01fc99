// What the slowest rank, the slowest stage and communication cost a run: a step is played again
// with its measured times, and then with some of them changed.
//
// Ranks that call each other within passes (tensor, context and expert parallel) are a *team*: they
// go through a pass together, which takes as long as on the rank that came to it last. The teams of
// all stages that send each other messages are a *pipeline*, played by the plans of its stages.
// Then all ranks wait for the norm of the gradients, and update.
#ifndef MEGATRON_TRAIN_METRICS_WHAT_IF_H_
#define MEGATRON_TRAIN_METRICS_WHAT_IF_H_

#include <optional>
#include <string>
#include <vector>

#include "megatron/comm/rank_grid.h"
#include "megatron/pipeline/stage_plan.h"
#include "megatron/train/metrics/step_times.h"

namespace megatron {

struct WhatIf {
  // Seconds: the mean of the measured steps, and what the replay of their times takes.
  double measured = 0, replayed = 0;
  int64_t steps = 0;  // the number of steps that were measured

  // One change, and the seconds that a step would take with it.
  struct Case {
    double seconds = 0;
    double excess = 0;       // the share by which the rank, stage or group is above its peers
    std::vector<int> ranks;  // the ranks that it is about
    int stage = 0;
  };
  // The rank whose own work takes longest, if it took as long as the median of its stage's ranks,
  // or of all where stages have one rank each.
  std::optional<Case> rank;
  // The stage whose own work takes longest, if the work of all stages were that of their mean.
  std::optional<Case> stage;
  // The team whose calls take longest beside those of its stage's other teams, if they took as long
  // as their median.
  std::optional<Case> group;
  // If a kind of communication took no time: the calls within passes, the messages between stages,
  // and the reduction of gradients after the passes.
  std::optional<Case> calls, messages, reduction;
};

struct WhatIfInput {
  RankGrid dense, expert;
  std::vector<StagePlan> plans;               // all stages' plans of the measured steps
  std::vector<std::vector<StepTimes>> steps;  // by rank; steps of other plans are left out
};

// Returns nothing if there is one rank, or no step that was measured on all of them.
std::optional<WhatIf> ComputeWhatIf(const WhatIfInput& input);

// A change in words: "if the slowest rank were like its peers: rank 3 on gpu08, +12.0 % work".
struct Saving {
  double seconds = 0;  // the time that a step would take
  std::string condition;
};

// Returns the changes that would save at least a hundredth of a step. `hosts` are the names of the
// ranks' machines, or empty.
std::vector<Saving> SavingsOf(const WhatIf& what_if, const std::vector<std::string>& hosts);

// Returns the lines that end a run.
std::string FormatWhatIf(const WhatIf& what_if, const std::vector<Saving>& savings);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_WHAT_IF_H_
