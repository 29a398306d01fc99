// The fields that say how the model and the work on it are cut along the pipeline: what they mean.
// All functions expect fields that agree with each other (validate/validate_pipeline.cc).
#ifndef MEGATRON_TRAIN_TRAINER_PIPELINE_SECTION_H_
#define MEGATRON_TRAIN_TRAINER_PIPELINE_SECTION_H_

#include <cstdint>

#include "megatron/models/stage_placement.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// Returns the number of layers that are shared out evenly over the parts; the embedding and the
// loss count as one each where the fields say so.
int64_t LayersToShare(const config::PretrainConfig& config);

// Returns the number of parts of the model on each rank.
int64_t ChunksOf(const config::PretrainConfig& config);

ScheduleKind ToScheduleKind(const config::ParallelConfig& config);

// Returns the placement, except the stage.
StagePlacement ToPlacement(const config::PretrainConfig& config);

// Counts the matrix products of the layers of each part, in units of the mean part's forward.
PartCosts ToActionCosts(const config::PretrainConfig& config);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_PIPELINE_SECTION_H_
