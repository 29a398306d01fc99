// What a rank exchanges in a step along each axis.
#ifndef MEGATRON_TRAIN_TOPOLOGY_AXIS_TRAFFIC_H_
#define MEGATRON_TRAIN_TOPOLOGY_AXIS_TRAFFIC_H_

#include <cstdint>
#include <vector>

#include "megatron/tensor/axis.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

struct AxisTraffic {
  const char* name = "";
  AxisSet axes;                // the group that exchanges
  bool is_of_experts = false;  // the group is one of the expert grid
  bool is_message = false;     // between neighbours of the group, else collective
  double calls = 0;            // of a rank and step; an all-reduce counts as two
  double bytes = 0;            // of a call: a message, or the whole tensor of a gather or scatter
};

// Returns what the tables of docs/parallelism.md say for the mean layer. Groups of one rank are
// among them, and exchange nothing. Expects a valid configuration with its computed fields set. The
// encoder of a T5 counts as long as its decoder.
std::vector<AxisTraffic> TrafficOf(const config::PretrainConfig& config, int64_t padded_vocab_size);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TOPOLOGY_AXIS_TRAFFIC_H_
