#include "megatron/train/recipes/gpt_rules.h"

#include <utility>

#include "megatron/train/costs/layer_shape.h"
#include "megatron/train/recipes/hybrid_layers.h"
#include "megatron/train/recipes/one_stack_rules.h"

namespace megatron {
namespace {

class Gpt : public ModelRules {
 public:
  ModelKind kind() const override { return ModelKind::kGpt; }
  void ResolveDefaults(config::ModelConfig* model) const override { ResolveHybridLayers(model); }
  void Check(ConfigChecker& check) const override { CheckOneStack(check); }
  SampleFilling filling() const override { return SampleFilling::kNone; }

  int64_t CountParameters(const config::ModelConfig& model,
                          int64_t padded_vocab_size) const override {
    return CountOneStackParameters(model, padded_vocab_size) + CountMtpParameters(model) +
           (model.add_output_bias() ? padded_vocab_size : 0);
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
    const double tokens = static_cast<double>(model.seq_length());
    const LayerShape shape = ToLayerShape(model);
    MatrixProducts products = HeadProducts(shape, tokens, padded_vocab_size);
    if (model.mtp_num_layers() == 0) return products;
    // Each layer of multi-token prediction is like the last, between two more products.
    const MatrixProducts layer = ProductsOfLayers(model, FlopsConvention::kCausalHalved).back();
    for (int64_t depth = 0; depth < model.mtp_num_layers(); ++depth) {
      products = Joined(std::move(products), MtpProjection(shape, tokens));
      products = Joined(std::move(products), layer);
      products = Joined(std::move(products), HeadProducts(shape, tokens, padded_vocab_size));
    }
    return products;
  }
};

}  // namespace

const ModelRules& GptRules() {
  static const auto* const rules = new Gpt();
  return *rules;
}

}  // namespace megatron
