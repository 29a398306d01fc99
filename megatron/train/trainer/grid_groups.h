// The ranks of a tensor grid among a run's groups.
#ifndef MEGATRON_TRAIN_TRAINER_GRID_GROUPS_H_
#define MEGATRON_TRAIN_TRAINER_GRID_GROUPS_H_

#include "megatron/comm/process_groups.h"
#include "megatron/layers/tensor_grid.h"

namespace megatron {

inline TensorGridGroups GridOf(const ProcessGroups& groups) {
  return {groups.tensor_row,      groups.tensor_column,
          groups.tensor_square,   groups.tensor_depth,
          groups.tensor_replicas, /*is_cube=*/groups.data_inner_rows.size() > 1};
}

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_GRID_GROUPS_H_
