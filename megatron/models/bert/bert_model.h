// BERT: one stack of encoder layers, trained to fill in masked tokens and, with its binary head, to
// say in which order two pieces of text stand; or, with classes, to classify sequences.
#ifndef MEGATRON_MODELS_BERT_BERT_MODEL_H_
#define MEGATRON_MODELS_BERT_BERT_MODEL_H_

#include <memory>

#include "megatron/models/model_stage.h"

namespace megatron {

std::unique_ptr<ModelStage> MakeBertStage(const ModelOptions& options, const StageSetup& setup);

}  // namespace megatron

#endif  // MEGATRON_MODELS_BERT_BERT_MODEL_H_
