// The rules that all kinds of models that are one stack of layers have in common.
#ifndef MEGATRON_TRAIN_RECIPES_ONE_STACK_RULES_H_
#define MEGATRON_TRAIN_RECIPES_ONE_STACK_RULES_H_

#include <cstdint>
#include <vector>

#include "megatron/plan/model_costs.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_checker.h"

namespace megatron {

// Refuses what only a model with an encoder and a decoder has.
void CheckOneStack(ConfigChecker& check);

// Counts the parameters of layers and tables, and the norm behind the layers.
int64_t CountOneStackParameters(const config::ModelConfig& model, int64_t padded_vocab_size);
// Counts those of multi-token prediction.
int64_t CountMtpParameters(const config::ModelConfig& model);

// Returns the products of each layer for a sample of seq_length tokens, each of which sees `seen`
// on average, and in layers with a window `in_window`.
std::vector<MatrixProducts> OneStackProducts(const config::ModelConfig& model, double seen,
                                             double in_window);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_RECIPES_ONE_STACK_RULES_H_
