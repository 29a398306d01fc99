// T5: an encoder and a decoder, trained to restore spans that are missing from a text.
#ifndef MEGATRON_MODELS_T5_T5_MODEL_H_
#define MEGATRON_MODELS_T5_T5_MODEL_H_

#include <memory>

#include "megatron/models/model_stage.h"

namespace megatron {

std::unique_ptr<ModelStage> MakeT5Stage(const ModelOptions& options, const StageSetup& setup);

}  // namespace megatron

#endif  // MEGATRON_MODELS_T5_T5_MODEL_H_
