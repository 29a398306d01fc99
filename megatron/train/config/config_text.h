// Writes a configuration out in full.

#ifndef MEGATRON_TRAIN_CONFIG_CONFIG_TEXT_H_
#define MEGATRON_TRAIN_CONFIG_CONFIG_TEXT_H_

#include <string>

#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_locations.h"

namespace megatron {

// Returns the configuration as text that can be loaded again, one field a line, defaults included;
// a field that has neither value nor default is left out, and so is an absent message. The same
// configuration always gives the same text.
std::string EffectiveConfigText(const config::PretrainConfig& config);

// Returns the same with a comment at each line: the place where the value was written, "default" or
// "computed".
//
//   model {
//     num_layers: 4  # gpt_demo.textproto:9:3
//     ffn_hidden_size: 512  # computed
std::string EffectiveConfigText(const config::PretrainConfig& config,
                                const ConfigLocations& locations);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_CONFIG_CONFIG_TEXT_H_
