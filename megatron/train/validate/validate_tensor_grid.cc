#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/base/quantity.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/trainer/parallel_section.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr char kMode[] = "parallel.tensor_parallel_mode";
constexpr char kTensor[] = "parallel.tensor_model_parallel_size";

// Checks that what is cut over the rows or columns of the square can be shared evenly.
void CheckThatSideDivides(ConfigChecker& check, int side) {
  const config::PretrainConfig& config = check.resolved();
  const config::ModelConfig& model = config.model();
  const auto expect = [&](absl::string_view path, int64_t value) {
    if (!check.Usable({path}) || value % side == 0) return;
    check.Error(path, absl::StrCat("must be divisible by ", side, ", the rows and columns of ",
                                   check.Named(kTensor), " with ", check.Named(kMode)));
  };
  expect("model.hidden_size", model.hidden_size());
  expect("model.ffn_hidden_size", model.ffn_hidden_size());
  expect("model.num_attention_heads", model.num_attention_heads());
  if (model.group_query_attention()) expect("model.num_query_groups", model.num_query_groups());
  expect("model.make_vocab_size_divisible_by", model.make_vocab_size_divisible_by());
  expect("train.micro_batch_size", config.train().micro_batch_size());
}

}  // namespace

void CheckTensorGrid(ConfigChecker& check) {
  const config::PretrainConfig& config = check.resolved();
  if (check.IsDefault(kMode) || !check.Usable({kTensor}) ||
      config.parallel().tensor_model_parallel_size() == 1) {
    return;
  }
  const absl::StatusOr<int> side = TensorSideOf(config.parallel());
  if (!side.ok()) {
    return check.Error(kMode,
                       absl::StrCat(side.status().message(), ", with ", check.Named(kTensor)));
  }
  CheckThatSideDivides(check, *side);
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path}))
      check.Error(kMode, absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
  };
  const config::ParallelConfig& parallel = config.parallel();
  refuse(config.model().model_type() != config::ModelType::gpt, "model.model_type",
         "GPT alone has layers that are cut along both dims");
  refuse(config.model().num_experts() > 0, "model.num_experts", "experts are cut along one dim");
  refuse(parallel.sequence_parallel(), "parallel.sequence_parallel",
         "each rank has its share of what lies between layers already");
  refuse(parallel.tp_comm_overlap(), "parallel.tp_comm_overlap",
         "broadcasts of blocks are not cut into pieces");
  refuse(parallel.context_parallel_size() > 1, "parallel.context_parallel_size",
         "rows of ranks have whole samples");
  refuse(config.precision().fp8_format() != config::Fp8Format::none, "precision.fp8_format",
         "the scales of blocks are not those of whole tensors");
  refuse(check.IsWritten("recompute.mlp_chunk_tokens"), "recompute.mlp_chunk_tokens",
         "each chunk would broadcast the weights again");
  refuse(check.IsWritten("recompute.attention_chunk_tokens"), "recompute.attention_chunk_tokens",
         "each chunk would broadcast the weights again");
  refuse(check.IsWritten("train.logits_chunk_tokens"), "train.logits_chunk_tokens",
         "each chunk would broadcast the weights again");
  refuse(!config.train().calculate_per_token_loss(), "train.calculate_per_token_loss",
         "no rank has the tokens of a whole micro-batch");
  refuse(config.data().has_random_ltd(), "data.random_ltd",
         "it is not available for parts of columns");
  refuse(config.diloco().sync_every() > 0, "diloco.sync_every",
         "islands are cut out of data-parallel ranks alone");
  refuse(config.gradient_compression().type() != config::GradientCompression::none,
         "gradient_compression.type", "it is not available for blocks of weights");
  refuse(config.optimizer().optimizer() == config::Optimizer::muon ||
             config.optimizer().optimizer() == config::Optimizer::lamb,
         "optimizer.optimizer", "it reads whole matrices, which are cut along one dim at most");
  refuse(config.logging().diagnostics_interval() > 0, "logging.diagnostics_interval",
         "it measures whole rows of what lies between layers");
  refuse(check.IsWritten("parallel.topology_file"), "parallel.topology_file",
         "it orders ranks by the messages of layers that are cut along one dim");
  refuse(config.train().auto_layout(), "train.auto_layout",
         "it predicts steps of layers that are cut along one dim");
  const config::SystemConfig& system = config.system();
  if (system.has_device() ? system.device() == config::Device::cuda : CudaDeviceCount() > 0) {
    check.Error(kMode,
                "has no kernels for norms of cut rows on GPUs; it runs with system.device: cpu");
  }
}

}  // namespace megatron
