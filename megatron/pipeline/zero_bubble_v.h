// ZB-V: a zero-bubble schedule over two chunks a stage, the first from the first stage to the last
// and the second back, in the shape of a V. The last stage turns micro-batches around without a
// message, and the first holds both ends of the model.
//
// Backwards are split, and every stage fills its pauses with the weights' parts. Where forward and
// both parts of backward take as long, a stage is idle only until its first micro-batch arrives:
// (stages - 1) / (6 microbatches), half of ZB-H1's bubble and a sixth of 1F1B's, with as many
// micro-batches as stages or half as many again. No stage holds more than 2 * stages halves of a
// micro-batch, as much as 1F1B's first stage.
//
// Qi et al. 2023, "Zero Bubble Pipeline Parallelism". How the order is found is our own: all stages
// are played through, each doing the first that can be done of a list of preferences, with the
// given costs and, in small pipelines, with some others. Of all such orders the one that ends
// soonest with the given costs is taken.
#ifndef MEGATRON_PIPELINE_ZERO_BUBBLE_V_H_
#define MEGATRON_PIPELINE_ZERO_BUBBLE_V_H_

#include <cstdint>

#include "megatron/pipeline/schedule.h"

namespace megatron {

// Stages times micro-batches of a pipeline that is small enough to be played with several costs.
inline constexpr int64_t kMostCellsOfZeroBubbleV = 2048;

// The lists of all stages together, since what a stage does next follows from what the others have
// done.
Schedule ZeroBubbleVSchedule(int stages, int microbatches, const ActionCosts& costs = {});

}  // namespace megatron

#endif  // MEGATRON_PIPELINE_ZERO_BUBBLE_V_H_
