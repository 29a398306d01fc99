// The texts of the configuration of an imported model.

#ifndef MEGATRON_TOOLS_COMMON_IMPORT_TEXT_H_
#define MEGATRON_TOOLS_COMMON_IMPORT_TEXT_H_

#include <string>

#include "megatron/train/config/config.pb.h"

namespace megatron {

// Returns the text of `config` with the values that it leaves to be computed.
std::string CompleteText(config::PretrainConfig config);

// Returns the same, for a user who gives the training values of their own: it has what the sections
// train and optimizer say, but nothing that is computed from them or from the number of ranks. So a
// field that the user sets, such as train.train_iters, decides what follows from it.
std::string TextToTrainFrom(const config::PretrainConfig& config);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_COMMON_IMPORT_TEXT_H_
