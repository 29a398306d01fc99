#include "megatron/train/recipes/model_rules_of.h"

#include "glog/logging.h"
#include "megatron/train/recipes/bert_rules.h"
#include "megatron/train/recipes/gpt_rules.h"
#include "megatron/train/recipes/t5_rules.h"

namespace megatron {

const ModelRules& ModelRulesOf(const config::ModelConfig& model) {
  switch (model.model_type()) {
    case config::ModelType::gpt:
      return GptRules();
    case config::ModelType::bert:
      return BertRules();
    case config::ModelType::t5:
      return T5Rules();
  }
  LOG(FATAL) << "unknown model_type " << static_cast<int>(model.model_type());
}

int64_t TotalLayers(const config::ModelConfig& model) {
  int64_t total = 0;
  for (const StackLayers& stack : ModelRulesOf(model).StacksOf(model)) total += stack.num_layers;
  return total;
}

}  // namespace megatron
