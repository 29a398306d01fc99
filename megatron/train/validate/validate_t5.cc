#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr char kType[] = "model.model_type";
constexpr char kDecoderLength[] = "model.decoder_seq_length";
constexpr char kPositions[] = "model.max_position_embeddings";

// The lengths of a sample of one span that is cut out and of the tokens around it.
constexpr int64_t kShortestEncoderSample = 4, kShortestDecoderSample = 3;

void CheckRelativePositions(ConfigChecker& check) {
  constexpr char kBuckets[] = "model.relative_attention_num_buckets";
  constexpr char kDistance[] = "model.relative_attention_max_distance";
  const config::ModelConfig& model = check.resolved().model();
  if (model.position_embedding_type() != config::PositionEmbedding::relative) return;
  if (check.Usable({kBuckets}) && model.relative_attention_num_buckets() % 2 != 0)
    check.Error(kBuckets, "must be even: an encoder has a half for each side");
  if (check.Usable({kBuckets, kDistance}) &&
      model.relative_attention_max_distance() <= model.relative_attention_num_buckets() / 2) {
    check.Error(kDistance, absl::StrCat("must be more than half of ", check.Named(kBuckets)));
  }
}

// Each size of the encoder has two names, which may not say different things.
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

}  // namespace

void CheckT5(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  const std::string type = absl::StrCat("with ", check.Named(kType));
  CheckRelativePositions(check);
  if (model.model_type() != config::ModelType::t5) {
    if (model.position_embedding_type() == config::PositionEmbedding::relative) {
      check.Error("model.position_embedding_type",
                  absl::StrCat("may be relative with model.model_type: t5 alone, not ", type));
    }
    return;
  }
  CheckNames(check);
  CheckLengths(check, type);
  CheckParts(check, type);
  if (check.resolved().has_generation() &&
      !absl::StrContains(check.resolved().generation().prompt(), "<extra_id_")) {
    check.Error("generation.prompt", absl::StrCat("must hold an <extra_id_0> ", type));
  }
}

}  // namespace megatron
