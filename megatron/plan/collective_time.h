// The time of a collective among ranks that share links and network cards.
#ifndef MEGATRON_PLAN_COLLECTIVE_TIME_H_
#define MEGATRON_PLAN_COLLECTIVE_TIME_H_

#include <cstdint>

#include "megatron/plan/plan_facts.pb.h"

namespace megatron {

enum class TrafficCall { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kMessage };

const char* Name(TrafficCall call);  // "all-reduce"

// `ranks` ranks, each `stride` ranks after the one before. They may lie in blocks of so many, which
// begin `block_stride` ranks apart; 0: all are one block.
struct PlanGroup {
  int64_t ranks = 1;
  int64_t stride = 1;
  int64_t block = 0;
  int64_t block_stride = 0;
};

// Returns how many ranks of the group share a domain of `domain` GPUs.
int64_t RanksInDomain(const PlanGroup& group, int64_t domain);

// Seconds of a call of a tensor of `bytes` in all, or of an all-to-all of which each rank sends
// `bytes` (its own part included). Groups that lie beside this one run at the same time. GPUs form
// rings, which enter each node once, but for an all-to-all, in which each sends what leaves the
// node over a network card of its own; the ranks of processors read each other's memory over links,
// and send from rank to rank between nodes, or by the program's route.
double CollectiveSeconds(const Hardware& gpu, const Implementation& program, TrafficCall call,
                         const PlanGroup& group, double bytes);

// Seconds more that a call takes which a processor makes beside computing, by a thread of its own;
// none on GPUs.
double LaneSeconds(const Hardware& gpu);

// Seconds of a message between neighbours `stride` ranks apart.
double MessageSeconds(const Hardware& gpu, const Implementation& program, int64_t stride,
                      double bytes);

// Returns how many tensor-parallel ranks share out an activation between pipeline stages, which
// each of `tp` ranks holds in whole unless they share out the rows.
inline int64_t MessageParts(const Implementation& program, int64_t tp, bool is_sequence_parallel) {
  return is_sequence_parallel || program.scatters_messages() ? tp : 1;
}

}  // namespace megatron

#endif  // MEGATRON_PLAN_COLLECTIVE_TIME_H_
