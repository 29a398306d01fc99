// Makes the stage of a model of any kind.
#ifndef MEGATRON_MODELS_MAKE_STAGE_H_
#define MEGATRON_MODELS_MAKE_STAGE_H_

#include <memory>

#include "megatron/models/model_options.h"
#include "megatron/models/model_stage.h"

namespace megatron {

std::unique_ptr<ModelStage> MakeStage(const ModelOptions& options, const StageSetup& setup);

}  // namespace megatron

#endif  // MEGATRON_MODELS_MAKE_STAGE_H_
