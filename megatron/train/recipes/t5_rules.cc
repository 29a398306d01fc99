#include "megatron/train/recipes/t5_rules.h"

#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/data/tasks/labelled_task.h"
#include "megatron/train/config/config_checker.h"
#include "megatron/train/costs/layer_shape.h"
#include "megatron/train/recipes/labelled_task_of.h"

namespace megatron {
namespace {

constexpr char kDecoderLength[] = "model.decoder_seq_length";
constexpr char kPositions[] = "model.max_position_embeddings";

// The lengths of a sample of one span that is cut out and of the tokens around it.
constexpr int64_t kShortestEncoderSample = 4, kShortestDecoderSample = 3;

// Checks that the two names of a size of the encoder do not say different things.
void CheckNames(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  if (check.IsWritten("model.num_layers") && check.IsWritten("model.encoder_num_layers") &&
      model.num_layers() != model.encoder_num_layers()) {
    check.Error("model.encoder_num_layers",
                absl::StrCat("contradicts ", check.Named("model.num_layers"), "; choose one"));
  }
  if (check.IsWritten("model.seq_length") && check.IsWritten("model.encoder_seq_length") &&
      model.seq_length() != model.encoder_seq_length()) {
    check.Error("model.encoder_seq_length",
                absl::StrCat("contradicts ", check.Named("model.seq_length"), "; choose one"));
  }
}

void CheckLengths(ConfigChecker& check, const std::string& type) {
  const config::ModelConfig& model = check.resolved().model();
  if (!check.IsWritten(kDecoderLength)) {
    if (!check.locations().IsBroken(kDecoderLength))
      check.Error(kDecoderLength, absl::StrCat("is required ", type));
    return;
  }
  if (!check.Usable({kDecoderLength})) return;
  const int64_t length = model.decoder_seq_length();
  if (check.Usable({"model.seq_length"}) && model.seq_length() < kShortestEncoderSample) {
    check.Error("model.seq_length",
                absl::StrCat("must be at least ", kShortestEncoderSample, " ", type));
  }
  if (length < kShortestDecoderSample) {
    check.Error(kDecoderLength, absl::StrCat("must be at least ", kShortestDecoderSample));
  }
  if (check.Usable({kPositions}) && length > model.max_position_embeddings())
    check.Error(kPositions, absl::StrCat("must be at least ", check.Named(kDecoderLength)));
}

// Refuses parts of a network that a T5 does not have.
void CheckParts(ConfigChecker& check, const std::string& type) {
  const config::ModelConfig& model = check.resolved().model();
  const config::PositionEmbedding::Type positions = model.position_embedding_type();
  if (positions != config::PositionEmbedding::learned_absolute &&
      positions != config::PositionEmbedding::relative) {
    check.Error("model.position_embedding_type",
                absl::StrCat("must be learned_absolute or relative ", type));
  }
  for (const absl::string_view path : {"model.post_norm", "model.qk_layernorm",
                                       "model.group_query_attention", "model.add_qkv_bias"}) {
    if (!check.IsDefault(path)) check.Error(path, absl::StrCat("is not there ", type));
  }
  if (check.IsWritten("model.num_experts"))
    check.Error("model.num_experts", absl::StrCat("is not there ", type));
}

class T5 : public ModelRules {
 public:
  ModelKind kind() const override { return ModelKind::kT5; }

  // Each size of the encoder has two names.
  void ResolveDefaults(config::ModelConfig* model) const override {
    if (!model->has_num_layers() && model->has_encoder_num_layers())
      model->set_num_layers(model->encoder_num_layers());
    if (!model->has_encoder_num_layers() && model->has_num_layers())
      model->set_encoder_num_layers(model->num_layers());
    if (!model->has_decoder_num_layers() && model->has_encoder_num_layers())
      model->set_decoder_num_layers(model->encoder_num_layers());
    if (!model->has_seq_length() && model->has_encoder_seq_length())
      model->set_seq_length(model->encoder_seq_length());
    if (!model->has_encoder_seq_length() && model->has_seq_length())
      model->set_encoder_seq_length(model->seq_length());
    if (!model->has_softmax_scale() && model->kv_channels() > 0)
      model->set_softmax_scale(1 / std::sqrt(static_cast<double>(model->kv_channels())));
    if (!model->has_add_output_bias())
      model->set_add_output_bias(!model->untie_embeddings_and_output_weights());
  }

  void Check(ConfigChecker& check) const override {
    const std::string type = absl::StrCat("with ", check.Named("model.model_type"));
    CheckNames(check);
    CheckLengths(check, type);
    CheckParts(check, type);
    const std::optional<LabelledTask> task = LabelledTaskOf(check.resolved().data());
    if (task.has_value() && *task != LabelledTask::kTextToText)
      check.Error("data.task", absl::StrCat("must be text_to_text ", type));
    if (check.resolved().has_generation() &&
        !absl::StrContains(check.resolved().generation().prompt(), "<extra_id_")) {
      check.Error("generation.prompt", absl::StrCat("must hold an <extra_id_0> ", type));
    }
  }

  SampleFilling filling() const override { return SampleFilling::kToAnyLength; }

  SampleLengths LengthsOf(const config::ModelConfig& model) const override {
    return {model.decoder_seq_length(), model.seq_length()};
  }

  std::vector<StackLayers> StacksOf(const config::ModelConfig& model) const override {
    return {{"model.encoder_num_layers", model.encoder_num_layers()},
            {"model.decoder_num_layers", model.decoder_num_layers()}};
  }

  int64_t CountParameters(const config::ModelConfig& model,
                          int64_t padded_vocab_size) const override {
    const int64_t encoder = model.encoder_num_layers(), decoder = model.decoder_num_layers();
    const int64_t norm = NormWeights(model, model.hidden_size());
    const int64_t width = model.num_attention_heads() * model.kv_channels();
    const int64_t cross_biases = model.disable_bias_linear() ? 0 : 3 * width + model.hidden_size();
    int64_t layers =
        (encoder + decoder) * (LayerBiases(model) + 2 * norm) + decoder * (cross_biases + norm);
    for (const MatrixProducts& layer : ProductsOfLayers(model, FlopsConvention::kClassic))
      layers += CountWeights(layer);
    const bool relative = model.position_embedding_type() == config::PositionEmbedding::relative;
    // Each stack has a table of its own.
    const int64_t positions =
        relative ? 2 * model.relative_attention_num_buckets() * model.num_attention_heads()
                 : model.max_position_embeddings() * model.hidden_size();
    const int64_t tables = model.untie_embeddings_and_output_weights() ? 2 : 1;
    return layers + 2 * norm + positions + tables * padded_vocab_size * model.hidden_size() +
           (model.add_output_bias() ? padded_vocab_size : 0);
  }

  // The encoder sees all that it reads; the decoder sees what it has written, and reads the
  // encoder's output.
  std::vector<MatrixProducts> ProductsOfLayers(const config::ModelConfig& model,
                                               FlopsConvention convention) const override {
    const LayerShape shape = ToLayerShape(model);
    const double read = static_cast<double>(model.seq_length());
    const double written = static_cast<double>(model.decoder_seq_length());
    const double seen = CausallySeen(written, convention);
    std::vector<MatrixProducts> layers(
        model.encoder_num_layers(),
        Joined(SelfAttentionProducts(shape, read, read), MlpProducts(shape, read)));
    layers.resize(model.encoder_num_layers() + model.decoder_num_layers(),
                  Joined(Joined(SelfAttentionProducts(shape, written, seen),
                                CrossAttentionProducts(shape, written, read)),
                         MlpProducts(shape, written)));
    return layers;
  }

  MatrixProducts ProductsOfHead(const config::ModelConfig& model,
                                int64_t padded_vocab_size) const override {
    return HeadProducts(ToLayerShape(model), static_cast<double>(model.decoder_seq_length()),
                        padded_vocab_size);
  }
};

}  // namespace

const ModelRules& T5Rules() {
  static const auto* const rules = new T5();
  return *rules;
}

}  // namespace megatron
