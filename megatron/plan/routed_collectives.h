// The time of collectives that go by ring or tree (comm/collective_routes.h) between ranks which
// are processes, on hosts that share a link each. docs/communication.md has the ways and their
// bytes.
#ifndef MEGATRON_PLAN_ROUTED_COLLECTIVES_H_
#define MEGATRON_PLAN_ROUTED_COLLECTIVES_H_

#include <cstdint>

#include "megatron/plan/collective_time.h"
#include "megatron/plan/plan_facts.pb.h"

namespace megatron {

// What a call sends from host to host, in tensors, and the steps of a segment's way.
struct RoutedCall {
  double most = 0;       // bytes over those of the tensor that the host which sends most sends
  double mean = 0;       // the same of all hosts on average
  double steps = 0;      // from the first rank to the last that gets the result
  double far_steps = 0;  // those of them between hosts
};

// Returns that of an all-reduce, a reduce-scatter or an all-gather over so many ranks, on hosts of
// `ranks_of_host` neighbours. `route` is not MESH.
RoutedCall RouteCall(Implementation::Route route, TrafficCall call, int64_t ranks,
                     int64_t ranks_of_host);

// The rates in bytes a second and the latencies of a step.
struct RoutedLinks {
  double near_rate = 0, far_rate = 0;  // within a host; between hosts, of a whole host
  double near_latency = 0, far_latency = 0;
};

// Returns the seconds of the call. Segments follow each other along the way: as many are under way
// as the way has steps, and where latency is long, sums wait for them.
double RoutedSeconds(Implementation::Route route, TrafficCall call, int64_t ranks,
                     int64_t ranks_of_host, double bytes, const RoutedLinks& links);

}  // namespace megatron

#endif  // MEGATRON_PLAN_ROUTED_COLLECTIVES_H_
