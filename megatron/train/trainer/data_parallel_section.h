// The options of what data-parallel ranks and islands send each other, from a configuration.
#ifndef MEGATRON_TRAIN_TRAINER_DATA_PARALLEL_SECTION_H_
#define MEGATRON_TRAIN_TRAINER_DATA_PARALLEL_SECTION_H_

#include "megatron/islands/island_link.h"
#include "megatron/optim/data_parallel.h"
#include "megatron/optim/outer/outer_optimizer.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/train/batches/micro_batch_packer.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// All expect a valid configuration with its computed fields set.
DataSharding ToSharding(const config::ParallelConfig& config);
// `packing` is that of a rank's largest step.
DataParallelOptions ToDataParallelOptions(const config::PretrainConfig& config,
                                          const PackerOptions& packing);
OuterOptimizerOptions ToOuterOptimizerOptions(const config::PretrainConfig& config);
// Returns options that are not enabled where the run is no island of a server's.
IslandLinkOptions ToIslandLinkOptions(const config::PretrainConfig& config);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_DATA_PARALLEL_SECTION_H_
