// The bytes that one rank sends in a step, by axis of parallelism and kind of call.
//
//   for (const TrafficRow& row : StepTraffic(program, model, layout, stage)) SentBytes(row)
//
// They are those of this project's own trainer (docs/parallelism.md, "What each axis moves"), which
// sends what Megatron core does. Left out are single numbers (the loss, the norm of the gradients),
// what routers count, the numbers of rows in front of experts' exchanges, and the gradients of
// biases and of the position table that tensor-parallel ranks sum. Routers balance.
#ifndef MEGATRON_PLAN_STEP_TRAFFIC_H_
#define MEGATRON_PLAN_STEP_TRAFFIC_H_

#include <vector>

#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/plan/traffic_row.h"

namespace megatron {

// What a stage holds, and the tensors that it sends to other stages in a step.
struct TrafficStage {
  PartLayers layers;
  bool has_embedding = true;
  bool has_head = true;
  double messages = 0;
};

// What all ranks send for QK-clip, which belongs to no axis: it is a row of TrafficAxis::kData.
inline constexpr char kLargestScores[] = "largest scores of attention";

// Returns rows with calls and bytes above 0 alone.
std::vector<TrafficRow> StepTraffic(const Implementation& program, const PlanModel& model,
                                    const PlanLayout& layout, const TrafficStage& stage);

}  // namespace megatron

#endif  // MEGATRON_PLAN_STEP_TRAFFIC_H_
