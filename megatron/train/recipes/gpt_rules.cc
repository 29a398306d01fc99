#include "megatron/train/recipes/gpt_rules.h"

#include "megatron/train/costs/layer_shape.h"
#include "megatron/train/recipes/one_stack_rules.h"

namespace megatron {
namespace {

class Gpt : public ModelRules {
 public:
  ModelKind kind() const override { return ModelKind::kGpt; }
  void Check(ConfigChecker& check) const override { CheckOneStack(check); }
  SampleFilling filling() const override { return SampleFilling::kNone; }

  int64_t CountParameters(const config::ModelConfig& model,
                          int64_t padded_vocab_size) const override {
    return CountOneStackParameters(model, padded_vocab_size);
  }

  std::vector<MatrixProducts> ProductsOfLayers(const config::ModelConfig& model,
                                               FlopsConvention convention) const override {
    const double tokens = static_cast<double>(model.seq_length());
    return OneStackProducts(
        model, CausallySeen(tokens, convention),
        SeenInWindow(tokens, static_cast<double>(model.window_size() + 1), convention));
  }

  MatrixProducts ProductsOfHead(const config::ModelConfig& model,
                                int64_t padded_vocab_size) const override {
    return HeadProducts(ToLayerShape(model), static_cast<double>(model.seq_length()),
                        padded_vocab_size);
  }
};

}  // namespace

const ModelRules& GptRules() {
  static const auto* const rules = new Gpt();
  return *rules;
}

}  // namespace megatron
