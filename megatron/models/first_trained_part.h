// Where backward ends in a model of which some parameters are frozen.
#ifndef MEGATRON_MODELS_FIRST_TRAINED_PART_H_
#define MEGATRON_MODELS_FIRST_TRAINED_PART_H_

#include "megatron/models/model_options.h"
#include "megatron/models/stage_placement.h"
#include "megatron/tensor/name_patterns.h"

namespace megatron {

// Returns the number of the first part of the model, in its order, that has a parameter which none
// of the patterns matches; the last part's if there is none.
int FirstTrainedPart(const ModelOptions& options, const StagePlacement& placement,
                     const NamePatterns& frozen);

}  // namespace megatron

#endif  // MEGATRON_MODELS_FIRST_TRAINED_PART_H_
