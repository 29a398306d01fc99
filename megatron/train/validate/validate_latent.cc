#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/costs/layer_shape.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr absl::string_view kLatent = "model.multi_latent_attention";
constexpr absl::string_view kValue = "model.v_head_dim";

// Checks what heads whose values are not as wide as keys cannot be used with. `path` is the field
// that makes them.
void CheckWidths(ConfigChecker& check, absl::string_view path) {
  const config::PretrainConfig& config = check.resolved();
  const auto refuse = [&](bool broken, absl::string_view other, absl::string_view because) {
    if (broken && check.Usable({other}))
      check.Error(path, absl::StrCat("cannot be used with ", check.Named(other), ": ", because));
  };
  refuse(!config.model().multi_latent_attention() &&
             config.precision().fp8_format() != config::Fp8Format::none,
         "precision.fp8_format", "its projections are in the type of the activations");
  refuse(!check.IsDefault("parallel.tensor_parallel_mode"), "parallel.tensor_parallel_mode",
         "heads are cut by 1d tensor parallelism alone");
  refuse(config.optimizer().qk_clip(), "optimizer.qk_clip",
         "the weights of its queries and keys are laid out in another way");
}

void CheckPositions(ConfigChecker& check) {
  constexpr absl::string_view kType = "model.position_embedding_type";
  constexpr absl::string_view kRotated = "model.qk_pos_emb_head_dim";
  const config::ModelConfig& model = check.resolved().model();
  if (model.position_embedding_type() != config::PositionEmbedding::rope &&
      model.position_embedding_type() != config::PositionEmbedding::yarn) {
    check.Error(kLatent, absl::StrCat("needs ", kType, ": rope or yarn, not ", check.Named(kType)));
  }
  if (check.Usable({kRotated}) && model.qk_pos_emb_head_dim() % 2 != 0)
    check.Error(kRotated, "must be even: channels are rotated in pairs");
}

}  // namespace

void CheckLatentAttention(ConfigChecker& check) {
  constexpr absl::string_view kModules = "recompute.recompute_modules";
  const config::PretrainConfig& config = check.resolved();
  const config::ModelConfig& model = config.model();
  if (!model.multi_latent_attention()) {
    if (check.Usable({"model.kv_channels"}) && check.IsWritten(kValue) && check.Usable({kValue}) &&
        ValueHeadDim(model) != model.kv_channels()) {
      CheckWidths(check, kValue);
    }
    if (absl::c_linear_search(config.recompute().recompute_modules(),
                              config::RecomputeModule::mla_up_proj)) {
      check.Error(kModules,
                  absl::StrCat("names mla_up_proj, which has no effect without ", kLatent));
    }
    return;
  }
  CheckWidths(check, kLatent);
  CheckPositions(check);
  constexpr absl::string_view kKey = "model.kv_channels";
  const int64_t key = model.qk_head_dim() + model.qk_pos_emb_head_dim();
  if (check.IsWritten(kKey) &&
      check.Usable({kKey, "model.qk_head_dim", "model.qk_pos_emb_head_dim"}) &&
      model.kv_channels() != key) {
    check.Error(kKey, absl::StrCat("is ", key, " with ", check.Named(kLatent), ": ",
                                   check.Named("model.qk_head_dim"), " plus ",
                                   check.Named("model.qk_pos_emb_head_dim"), "; leave it out"));
  }
  if (check.IsWritten("recompute.attention_chunk_tokens") &&
      absl::c_linear_search(config.recompute().recompute_modules(),
                            config::RecomputeModule::mla_up_proj)) {
    check.Error(kModules, absl::StrCat("names mla_up_proj, which has no effect with ",
                                       check.Named("recompute.attention_chunk_tokens"),
                                       ": chunks are made of heads that are kept"));
  }
  const auto refuse = [&](bool broken, absl::string_view other, absl::string_view because) {
    if (broken && check.Usable({other}))
      check.Error(kLatent, absl::StrCat("cannot be used with ", check.Named(other), ": ", because));
  };
  refuse(model.group_query_attention(), "model.group_query_attention",
         "each head has keys and values of its own");
  refuse(model.softmax_type() != config::SoftmaxType::vanilla, "model.softmax_type",
         "its heads have no sinks");
  refuse(model.post_norm(), "model.post_norm", "norms stand in front of its layers");
  refuse(model.add_qkv_bias(), "model.add_qkv_bias", "queries, keys and values have no biases");
  refuse(config.parallel().tensor_model_parallel_size() > 0 &&
             model.num_attention_heads() % config.parallel().tensor_model_parallel_size() != 0,
         "parallel.tensor_model_parallel_size",
         absl::StrCat("it must divide ", check.Named("model.num_attention_heads")));
}

}  // namespace megatron
