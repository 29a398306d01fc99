// The bytes that one rank sends in a step, by axis of parallelism and kind of call.
//
//   for (const TrafficRow& row : StepTraffic(program, model, layout, stage, options)) SentBytes(row)
//
// They are those of this project's own trainer (docs/parallelism.md, "What each axis moves"), which
// sends what Megatron core does. Left out are single numbers (the loss, the norm of the gradients)
// and the numbers of rows in front of experts' exchanges. Routers balance.
#ifndef MEGATRON_PLAN_STEP_TRAFFIC_H_
#define MEGATRON_PLAN_STEP_TRAFFIC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/plan/collective_time.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"

namespace megatron {

enum class TrafficAxis { kTensor, kContext, kExpert, kPipeline, kData };

const char* Name(TrafficAxis axis);  // "tensor"

enum class TrafficCall { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kMessage };

const char* Name(TrafficCall call);  // "all-reduce"

struct TrafficRow {
  TrafficAxis axis = TrafficAxis::kTensor;
  TrafficCall call = TrafficCall::kAllReduce;
  std::string what;  // what is sent: "outputs of attention and MLP"
  PlanGroup group;
  // Bytes of the whole tensor of one call; of an all-to-all, those that a rank gives in all; of
  // a message, its own.
  double bytes = 0;
  double calls = 0;            // the number of calls of one rank in a step
  bool is_of_experts = false;  // the group is one of the ranks that experts lie on
};

// What a stage holds, and the messages that it sends in a step.
struct TrafficStage {
  PartLayers layers;
  bool has_embedding = true;
  bool has_head = true;
  double messages = 0;
};

struct TrafficOptions {
  double gradient_bytes = 4;
  // Each micro-batch's gradients are summed over the ranks that keep a part of them (ZeRO-2).
  bool shards_gradients = false;
};

// Returns rows with calls and bytes above 0 alone.
std::vector<TrafficRow> StepTraffic(const Implementation& program, const PlanModel& model,
                                    const PlanLayout& layout, const TrafficStage& stage,
                                    const TrafficOptions& options = {});

// Returns the bytes that a rank sends by the row in a step, with the best algorithm.
double SentBytes(const TrafficRow& row);

// Returns the seconds of the row's calls, one after the other.
double TrafficSeconds(const Hardware& gpu, const Implementation& program, const TrafficRow& row);

}  // namespace megatron

#endif  // MEGATRON_PLAN_STEP_TRAFFIC_H_
