// The identity of a training run, which tells it from others.
#ifndef MEGATRON_TRAIN_TRAINER_RUN_IDENTITY_H_
#define MEGATRON_TRAIN_TRAINER_RUN_IDENTITY_H_

#include <string>

#include "megatron/train/config/config.pb.h"

namespace megatron {

// A text of all that decides the weights at the start and the samples that follow: two runs with
// equal texts are the same run, continued or done again.
std::string RunIdentity(const config::PretrainConfig& config, const std::string& data_fingerprint);
// A hash of such a text, in 16 hexadecimal digits.
std::string RunId(const std::string& identity);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_RUN_IDENTITY_H_
