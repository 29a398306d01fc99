// The parts of a model that a pipeline stage holds.
#ifndef MEGATRON_MODELS_STAGE_PLACEMENT_H_
#define MEGATRON_MODELS_STAGE_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "megatron/pipeline/schedule.h"

namespace megatron {

// The model is cut into stages * chunks parts of consecutive layers.
struct StagePlacement {
  int stage = 0;
  int stages = 1;
  int chunks = 1;
  PartOrder order = PartOrder::kRoundRobin;
  // Number of layers of each part of the model, in order; an encoder's come before the decoder's.
  // Empty: all parts have as many; validation refuses a number of layers that doesn't divide.
  std::vector<int64_t> layers;

  bool first() const { return stage == 0; }            // holds the embedding
  bool last() const { return stage == last_stage(); }  // holds the head
  int last_stage() const { return PlaceOf(order, stages, stages * chunks - 1).stage; }
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_STAGE_PLACEMENT_H_
