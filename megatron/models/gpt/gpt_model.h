// GPT: one stack of decoder layers, trained to predict the next token.
#ifndef MEGATRON_MODELS_GPT_GPT_MODEL_H_
#define MEGATRON_MODELS_GPT_GPT_MODEL_H_

#include <memory>

#include "megatron/models/model_stage.h"

namespace megatron {

std::unique_ptr<ModelStage> MakeGptStage(const ModelOptions& options, const StageSetup& setup);

}  // namespace megatron

#endif  // MEGATRON_MODELS_GPT_GPT_MODEL_H_
