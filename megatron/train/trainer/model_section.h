// The options of a model, from a configuration.
#ifndef MEGATRON_TRAIN_TRAINER_MODEL_SECTION_H_
#define MEGATRON_TRAIN_TRAINER_MODEL_SECTION_H_

#include <cstdint>

#include "megatron/models/model_options.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// Expects a valid configuration with its computed fields set.
ModelOptions ToModelOptions(const config::PretrainConfig& config, int64_t vocab_size);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_MODEL_SECTION_H_
