// The identity of a training run, which tells it from others.
#ifndef MEGATRON_TRAIN_TRAINER_RUN_IDENTITY_H_
#define MEGATRON_TRAIN_TRAINER_RUN_IDENTITY_H_

#include <string>

#include "megatron/train/config/config.pb.h"

namespace megatron {

// Returns a text of all that determines the initial weights and the samples: two runs with equal
// texts are the same run, continued or repeated. With train.phase_transition_iterations the files
// of the data may change, and `data_fingerprint` is left out.
std::string RunIdentity(const config::PretrainConfig& config, const std::string& data_fingerprint);
// The name of a value of checkpoints that another program's were made into: that program. Their
// identity says what the model and its precision are; data and seed are those of whoever goes on.
inline constexpr char kSavedBy[] = "saved_by";
// Returns what islands of one outer server have in common, besides what it compares itself
// (islands/island_protocol.h): the model, its precision, the seed, and how they share samples.
std::string IslandAgreementText(const config::PretrainConfig& config);
// Returns a hash of such a text, in 16 hexadecimal digits.
std::string RunId(const std::string& identity);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_RUN_IDENTITY_H_
