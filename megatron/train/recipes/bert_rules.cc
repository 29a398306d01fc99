#include "megatron/train/recipes/bert_rules.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "megatron/data/tasks/labelled_task.h"
#include "megatron/train/config/config_checker.h"
#include "megatron/train/costs/layer_shape.h"
#include "megatron/train/recipes/labelled_task_of.h"
#include "megatron/train/recipes/one_stack_rules.h"

namespace megatron {
namespace {

constexpr int64_t kShortestSample = 5;  // two pieces of a token and three special ones

int64_t ChoicesOf(const config::ModelConfig& model) {
  return std::max<int64_t>(1, model.num_choices());
}

// Checks that the head is that of the data's task.
void CheckTask(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  const std::optional<LabelledTask> task = LabelledTaskOf(check.resolved().data());
  const TaskLabels labels = task.has_value() ? LabelsOf(*task) : TaskLabels();
  if (task.has_value() && labels.classes == 0) {
    return check.Error(
        "data.task", absl::StrCat("is one of a T5, and not of ", check.Named("model.model_type")));
  }
  if (check.resolved().data().loss_weights_size() > 0) {
    check.Error("data.loss_weights",
                absl::StrCat("is not there with ", check.Named("model.model_type"),
                             ", whose samples have losses of two kinds"));
  }
  if (!model.has_num_classes()) return;
  if (!task.has_value()) {
    return check.Error("model.num_classes",
                       "needs data.task, which says what is classified: MNLI, QQP or RACE");
  }
  const std::string of_task = absl::StrCat("of ", check.Named("data.task"));
  if (model.num_classes() != labels.classes) {
    check.Error("model.num_classes", absl::StrCat("must be the ", labels.classes, " ", of_task));
  }
  if (ChoicesOf(model) != labels.choices) {
    check.Error("model.num_choices", absl::StrCat("must be the ", labels.choices, " ", of_task));
  }
  check.HaveNoEffect(
      {"train.logits_chunk_tokens", "model.openai_gelu",
       "model.untie_embeddings_and_output_weights"},
      absl::StrCat("with ", check.Named("data.task"), ", whose model has no output matrix"));
  if (check.resolved().has_generation()) {
    check.MessageError("generation", absl::StrCat("is not there with ", check.Named("data.task"),
                                                  ": the model writes no words; --set generation= "
                                                  "takes it away"));
  }
  if (labels.choices == 1) return;
  for (const char* path : {"parallel.context_parallel_size", "model.num_experts"}) {
    if (!check.IsDefault(path)) {
      check.Error(path, absl::StrCat("is not there with ", check.Named("data.task"),
                                     ", whose samples have several sequences"));
    }
  }
}

class Bert : public ModelRules {
 public:
  ModelKind kind() const override { return ModelKind::kBert; }

  void ResolveDefaults(config::ModelConfig* model) const override {
    if (!model->has_num_tokentypes()) model->set_num_tokentypes(model->bert_binary_head() ? 2 : 0);
    if (!model->has_max_position_embeddings() && model->has_seq_length())
      model->set_max_position_embeddings(model->seq_length());
  }

  void Check(ConfigChecker& check) const override {
    const config::ModelConfig& model = check.resolved().model();
    const std::string type = absl::StrCat("with ", check.Named("model.model_type"));
    CheckOneStack(check);
    CheckTask(check);
    if (model.bert_binary_head() && check.Usable({"model.num_tokentypes"}) &&
        model.num_tokentypes() < 2) {
      check.Error("model.num_tokentypes",
                  absl::StrCat("must be at least 2 with ", check.Named("model.bert_binary_head")));
    }
    if (check.Usable({"model.seq_length"}) && model.seq_length() < kShortestSample) {
      check.Error("model.seq_length",
                  absl::StrCat("must be at least ", kShortestSample, " ", type));
    }
    if (!model.has_num_classes() && check.resolved().has_generation() &&
        !absl::StrContains(check.resolved().generation().prompt(), "[MASK]")) {
      check.Error("generation.prompt", absl::StrCat("must hold a [MASK] ", type));
    }
  }

  SampleFilling filling() const override { return SampleFilling::kToSeqLength; }

  SampleLengths LengthsOf(const config::ModelConfig& model) const override {
    return {model.seq_length() * ChoicesOf(model), 0};
  }

  int64_t CountParameters(const config::ModelConfig& model,
                          int64_t padded_vocab_size) const override {
    const int64_t hidden = model.hidden_size(), dense = hidden * hidden + hidden;
    if (model.has_num_classes()) {
      return CountOneStackParameters(model, padded_vocab_size) + model.num_tokentypes() * hidden +
             dense + model.num_classes() * (hidden + 1);
    }
    const int64_t order = model.bert_binary_head() ? dense + 2 * hidden + 2 : 0;
    // The head has a dense layer and a norm of its own, and a bias for each word.
    return CountOneStackParameters(model, padded_vocab_size) + model.num_tokentypes() * hidden +
           dense + NormWeights(model, hidden) + padded_vocab_size + order;
  }

  // Every token sees all others.
  std::vector<MatrixProducts> ProductsOfLayers(const config::ModelConfig& model,
                                               FlopsConvention convention) const override {
    const double seen = static_cast<double>(model.seq_length());
    std::vector<MatrixProducts> layers = OneStackProducts(model, seen, seen);
    for (MatrixProducts& layer : layers) {
      for (MatrixProduct& product : layer) product.count *= static_cast<double>(ChoicesOf(model));
    }
    return layers;
  }

  // The head's dense layer is as wide as the residual stream.
  MatrixProducts ProductsOfHead(const config::ModelConfig& model,
                                int64_t padded_vocab_size) const override {
    const LayerShape layer = ToLayerShape(model);
    if (model.has_num_classes()) {
      const double sequences = static_cast<double>(ChoicesOf(model));
      return Joined(HeadProducts(layer, sequences, layer.hidden),
                    HeadProducts(layer, sequences, model.num_classes()));
    }
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
