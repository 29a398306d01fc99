#include "megatron/train/recipes/bert_rules.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "megatron/train/config/config_checker.h"
#include "megatron/train/costs/layer_shape.h"
#include "megatron/train/recipes/one_stack_rules.h"

namespace megatron {
namespace {

constexpr int64_t kShortestSample = 5;  // two pieces of a token and three special ones

class Bert : public ModelRules {
 public:
  ModelKind kind() const override { return ModelKind::kBert; }

  void ResolveDefaults(config::ModelConfig* model) const override {
    if (!model->has_num_tokentypes()) model->set_num_tokentypes(model->bert_binary_head() ? 2 : 0);
  }

  void Check(ConfigChecker& check) const override {
    const config::ModelConfig& model = check.resolved().model();
    const std::string type = absl::StrCat("with ", check.Named("model.model_type"));
    CheckOneStack(check);
    if (model.bert_binary_head() && check.Usable({"model.num_tokentypes"}) &&
        model.num_tokentypes() < 2) {
      check.Error("model.num_tokentypes",
                  absl::StrCat("must be at least 2 with ", check.Named("model.bert_binary_head")));
    }
    if (check.Usable({"model.seq_length"}) && model.seq_length() < kShortestSample) {
      check.Error("model.seq_length",
                  absl::StrCat("must be at least ", kShortestSample, " ", type));
    }
    if (check.resolved().has_generation() &&
        !absl::StrContains(check.resolved().generation().prompt(), "[MASK]")) {
      check.Error("generation.prompt", absl::StrCat("must hold a [MASK] ", type));
    }
  }

  SampleFilling filling() const override { return SampleFilling::kToSeqLength; }

  int64_t CountParameters(const config::ModelConfig& model,
                          int64_t padded_vocab_size) const override {
    const int64_t hidden = model.hidden_size(), dense = hidden * hidden + hidden;
    const int64_t order = model.bert_binary_head() ? dense + 2 * hidden + 2 : 0;
    // The head has a dense layer and a norm of its own, and a bias for each word.
    return CountOneStackParameters(model, padded_vocab_size) + model.num_tokentypes() * hidden +
           dense + NormWeights(model, hidden) + padded_vocab_size + order;
  }

  // Every token sees all others.
  std::vector<MatrixProducts> ProductsOfLayers(const config::ModelConfig& model,
                                               FlopsConvention convention) const override {
    const double seen = static_cast<double>(model.seq_length());
    return OneStackProducts(model, seen, seen);
  }

  // The head's dense layer is as wide as the residual stream.
  MatrixProducts ProductsOfHead(const config::ModelConfig& model,
                                int64_t padded_vocab_size) const override {
    const LayerShape layer = ToLayerShape(model);
    const double tokens = static_cast<double>(model.seq_length());
    return Joined(HeadProducts(layer, tokens, layer.hidden),
                  HeadProducts(layer, tokens, padded_vocab_size));
  }
};

}  // namespace

const ModelRules& BertRules() {
  static const auto* const rules = new Bert();
  return *rules;
}

}  // namespace megatron
