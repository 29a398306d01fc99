#include "tools/common/import_text.h"

#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_text.h"

namespace megatron {

std::string CompleteText(config::PretrainConfig config) {
  ResolveDefaults(&config);
  return EffectiveConfigText(config);
}

std::string TextToTrainFrom(const config::PretrainConfig& config) {
  config::PretrainConfig completed = config;
  ResolveDefaults(&completed);
  *completed.mutable_train() = config.train();
  *completed.mutable_optimizer() = config.optimizer();
  *completed.mutable_parallel() = config.parallel();
  return EffectiveConfigText(completed);
}

}  // namespace megatron
