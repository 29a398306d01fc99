// What a rank sends by calls of one kind, and the time that they take.
#ifndef MEGATRON_PLAN_TRAFFIC_ROW_H_
#define MEGATRON_PLAN_TRAFFIC_ROW_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "megatron/plan/collective_time.h"
#include "megatron/plan/plan_facts.pb.h"

namespace megatron {

enum class TrafficAxis { kTensor, kContext, kExpert, kPipeline, kData };

const char* Name(TrafficAxis axis);  // "tensor"

struct TrafficRow {
  TrafficAxis axis = TrafficAxis::kTensor;
  TrafficCall call = TrafficCall::kAllReduce;
  const char* what = "";  // what is sent: "outputs of attention and MLP"
  PlanGroup group;
  // Bytes of the whole tensor of one call; of an all-to-all, those that a rank gives in all; of
  // a message, its own.
  double bytes = 0;
  double calls = 0;            // the number of calls of one rank in a step
  bool is_of_experts = false;  // the group is one of the ranks that experts lie on
  // The ranks of the group that are on one host of hierarchical calls; 1: the calls are flat.
  int64_t ranks_of_host = 1;
  // Bytes of memory that one call reads and writes for codes of fewer bits.
  double coded_bytes = 0;
  double hideable_calls = 0;  // those of data parallelism that may run beside the backward pass
  Implementation::Route route = Implementation::MESH;
};

// Returns whether calls go within hosts and between them.
bool HasTwoLevels(const TrafficRow& row);

// Returns the bytes that a rank sends by the row in a step, with the best algorithm.
double SentBytes(const TrafficRow& row);

// Returns those of them that leave the domain of links, as a mean over ranks. A ring of GPUs enters
// each domain once; ranks of processors, and all-to-alls, send from rank to rank.
double NetworkBytes(const Hardware& gpu, const TrafficRow& row);

// Returns the seconds of one pass of a hierarchical call of so many bytes, from those of a part of
// it within hosts of `ranks_of_host` ranks and between them. The two levels run beside each other,
// but for the first part.
double LevelSeconds(double bytes, int64_t ranks_of_host,
                    absl::FunctionRef<double(double part)> within,
                    absl::FunctionRef<double(double part)> between);

// Returns the seconds of the row's calls, one after the other.
double TrafficSeconds(const Hardware& gpu, const Implementation& program, const TrafficRow& row);

}  // namespace megatron

#endif  // MEGATRON_PLAN_TRAFFIC_ROW_H_
