// The calls that attention's kernels do not compute, as far as a configuration tells.
#ifndef MEGATRON_TRAIN_ATTENTION_ATTENTION_LIMITS_H_
#define MEGATRON_TRAIN_ATTENTION_ATTENTION_LIMITS_H_

#include <string>
#include <vector>

#include "megatron/train/config/config.pb.h"

namespace megatron {

// A reason for which a backend computes none of a run's attention.
struct AttentionLimit {
  std::string why;    // "cuDNN does not draw our dropout"
  std::string field;  // the field that asks for more, "model.attention_dropout"; empty for fp32
};

// Returns all reasons; there are none for `auto` and `local`. Expects the configuration's computed
// fields to be set.
std::vector<AttentionLimit> LimitsOf(config::AttentionBackend::Type backend,
                                     const config::PretrainConfig& config);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_ATTENTION_ATTENTION_LIMITS_H_
