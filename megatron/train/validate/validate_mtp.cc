#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/pipeline/pipeline_layout.h"
#include "megatron/train/validate/rules.h"

namespace megatron {

void CheckMultiTokenPrediction(ConfigChecker& check) {
  constexpr absl::string_view kLayers = "model.mtp_num_layers";
  constexpr absl::string_view kLayout = "parallel.pipeline_model_parallel_layout";
  const config::PretrainConfig& config = check.resolved();
  const config::ModelConfig& model = config.model();
  const bool has_number = !check.IsWritten(kLayers) || check.Usable({kLayers});
  if (check.IsWritten(kLayout) && check.Usable({kLayout}) && has_number) {
    // A layout that cannot be read is an error of its own.
    const auto layout = ParsePipelineLayout(config.parallel().pipeline_model_parallel_layout());
    if (layout.ok() && layout->mtp_layers != model.mtp_num_layers()) {
      check.Error(kLayout, absl::StrCat("has ", layout->mtp_layers,
                                        " layers m of multi-token prediction, not ",
                                        model.mtp_num_layers(), " as ", kLayers, " says"));
    }
  }
  if (!check.IsWritten(kLayers)) return;
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path}))
      check.Error(kLayers, absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
  };
  refuse(model.position_embedding_type() == config::PositionEmbedding::learned_absolute,
         "model.position_embedding_type", "its layers know positions by rotation alone");
  refuse(model.add_output_bias(), "model.add_output_bias", "its heads have no biases");
  refuse(model.post_norm(), "model.post_norm", "norms stand in front of its layers");
  refuse(!check.IsDefault("parallel.tensor_parallel_mode"), "parallel.tensor_parallel_mode",
         "its layers are cut by 1d tensor parallelism alone");
  refuse(config.parallel().sparse_gradients(), "parallel.sparse_gradients",
         "it looks up words a second time");
  refuse(config.optimizer().qk_clip(), "optimizer.qk_clip",
         "the scores of its layers are not measured");
  refuse(config.data().has_random_ltd(), "data.random_ltd", "its layers see all tokens");
  refuse(config.system().cuda_graph_impl() != config::CudaGraphImpl::none, "system.cuda_graph_impl",
         "its batches are no part of a graph");
}

}  // namespace megatron
