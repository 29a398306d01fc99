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
  AxisSet axes;  // the group whose ranks exchange
  // The group is cut into so many runs of neighbours, as instances and hosts are
  // (comm/rank_grid.h). Ranks exchange within their run, or across runs with those in the same
  // place.
  int runs = 1;
  bool is_across = false;
  // What calls make of hosts (comm/rank_grid.h): nothing, or two levels where the group has several
  // ranks on each of several hosts. With deduplicated dispatch they are among the group's ranks of
  // a host, or among those in the same place of all hosts.
  enum class Hosts { kNone, kLevels, kWithin, kAcross };
  Hosts hosts = Hosts::kNone;
  // With kAcross `bytes` are those of tokens that go to one host, and each token goes to as many
  // hosts as have some of the experts that it chooses, `choices` of `experts`.
  double experts = 0;
  double choices = 0;
  bool is_of_experts = false;  // the group is one of the expert grid
  bool is_message = false;     // between neighbours of the group, else collective
  bool is_exchange = false;    // an all-to-all
  double calls = 0;            // calls of a rank in a step; an all-reduce counts as two
  double bytes = 0;            // a call's: a message, or the whole tensor of a gather or scatter
};

// Returns what StepTraffic() (plan/step_traffic.h) says of a stage that has the mean number of
// layers of each kind, rounded up, and the embedding, without the gradients that the first and the
// last stage add up, without the weights of attention's gates, and without what all ranks send,
// which costs the same in every order. Expects a valid configuration with its computed fields set.
std::vector<AxisTraffic> TrafficOf(const config::PretrainConfig& config, int64_t padded_vocab_size);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TOPOLOGY_AXIS_TRAFFIC_H_
