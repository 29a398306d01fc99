// The rules between fields, by subject. Each function adds an error to the checker for each broken
// rule. Rules about a single field, and the conditions under which it has an effect, stand beside
// the field in config.proto.

#ifndef MEGATRON_TRAIN_VALIDATE_RULES_H_
#define MEGATRON_TRAIN_VALIDATE_RULES_H_

#include "megatron/train/config/config_checker.h"

namespace megatron {

// The network of any kind of model, and BERT's own fields.
void CheckModel(ConfigChecker& check);

// T5's own fields, and what a T5 does not have.
void CheckT5(ConfigChecker& check);

// Mixtures of experts.
void CheckExperts(ConfigChecker& check);

// The division of the model and its samples over ranks, including the pipeline.
void CheckParallel(ConfigChecker& check);

// Products of 8-bit floats.
void CheckFloat8(ConfigChecker& check);

// CUDA graphs.
void CheckCudaGraphs(ConfigChecker& check);

// Learning rate, weight decay and batch sizes.
void CheckTraining(ConfigChecker& check);

// The corpus and the tokenizer.
void CheckData(ConfigChecker& check);

// The profiler.
void CheckProfile(ConfigChecker& check);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_VALIDATE_RULES_H_
