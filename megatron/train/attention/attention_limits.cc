#include "megatron/train/attention/attention_limits.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/train/costs/layer_shape.h"

namespace megatron {

std::vector<AttentionLimit> LimitsOf(config::AttentionBackend::Type backend,
                                     const config::PretrainConfig& config) {
  const bool fused = backend == config::AttentionBackend::fused;
  const bool flash = backend == config::AttentionBackend::flash;
  std::vector<AttentionLimit> limits;
  if (!fused && !flash) return limits;
  const absl::string_view who = fused ? "cuDNN " : "the kernel for Hopper ";
  const auto limit = [&](bool broken, absl::string_view why, std::string field) {
    if (broken) limits.push_back({absl::StrCat(who, why), std::move(field)});
  };
  const config::ModelConfig& model = config.model();
  limit(!config.precision().bf16() && !config.precision().fp16(), "does not take fp32", "");
  limit(fused && model.attention_dropout() > 0, "does not draw our dropout",
        "model.attention_dropout");
  limit(config.parallel().context_parallel_size() > 1 &&
            config.parallel().cp_comm_type() != config::ContextParallelComm::a2a,
        "has whole sequences alone, as parallel.cp_comm_type: a2a gives them",
        "parallel.context_parallel_size");
  limit(config.recompute().has_attention_chunk_tokens(), "has whole sequences alone",
        "recompute.attention_chunk_tokens");
  limit(model.position_embedding_type() == config::PositionEmbedding::relative,
        "has no learned bias", "model.position_embedding_type");
  if (model.has_window_size() && !model.has_window_attn_skip_freq()) {
    limit(fused, "has no windows", "model.window_size");
    limit(flash && model.attention_dropout() > 0, "takes windows without dropout alone",
          "model.attention_dropout");
  }
  limit(model.has_attn_logit_softcapping(), "caps no scores", "model.attn_logit_softcapping");
  limit(ValueHeadDim(model) != model.kv_channels(), "has values that are as wide as keys alone",
        model.multi_latent_attention() ? "model.multi_latent_attention" : "model.v_head_dim");
  limit(flash && model.kv_channels() != 64 && model.kv_channels() != 128,
        "takes heads of 64 and 128", "model.kv_channels");
  return limits;
}

}  // namespace megatron
