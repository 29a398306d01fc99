// The hyperparameters of a run, for tables that compare runs.
#ifndef MEGATRON_TRAIN_METRICS_RUN_HPARAMS_H_
#define MEGATRON_TRAIN_METRICS_RUN_HPARAMS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "megatron/tensorboard/summaries.h"

namespace megatron {

// Returns the numbers, switches and choices of the sections that determine the result or the speed,
// where they differ from their defaults, with their paths: {"optimizer.lr", 3e-4}. `config_text` is
// that of EffectiveConfigText(); a text that is no configuration has none.
std::vector<std::pair<std::string, tensorboard::HparamValue>> HparamsOf(
    absl::string_view config_text);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_RUN_HPARAMS_H_
