// The fields that say how the model and the work on it are cut along the pipeline: their rules, and
// what they mean.
#ifndef MEGATRON_TRAIN_VALIDATE_PIPELINE_CONFIG_H_
#define MEGATRON_TRAIN_VALIDATE_PIPELINE_CONFIG_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "megatron/models/stage_placement.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_checker.h"

namespace megatron {

void CheckPipeline(ConfigChecker& check);

// Checks what an interleaved schedule needs of the field at `path`, a batch size that makes so many
// micro-batches on each data-parallel rank.
void CheckThatPipelineIsFilled(ConfigChecker& check, absl::string_view path, int64_t micro_batches);

// Returns the placement of a valid configuration, except the stage.
ScheduleKind ToScheduleKind(const config::ParallelConfig& config);
StagePlacement ToPlacement(const config::PretrainConfig& config);

// Counts the matrix products of the layers of this model. Of a model of one stack in units of a
// part's forward; of one with an encoder of each part.
PartCosts ToActionCosts(const config::PretrainConfig& config);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_VALIDATE_PIPELINE_CONFIG_H_
