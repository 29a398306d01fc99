#include <cstdint>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "megatron/plan/tensor_cuts.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_nearest_name.h"
#include "megatron/train/trainer/parallel_section.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr char kMode[] = "parallel.tensor_parallel_mode";
constexpr char kTensor[] = "parallel.tensor_model_parallel_size";
constexpr char kDepth[] = "parallel.tensor_parallel_depth";

// Returns the sizes that the grid is made of, as the user wrote them.
std::string NamedSizes(const ConfigChecker& check) {
  const std::string sizes = check.Named(kTensor);
  if (check.resolved().parallel().tensor_parallel_mode() != "2.5d") return sizes;
  return absl::StrCat(sizes, " and ", check.Named(kDepth));
}

// A size that is cut, as the configuration has it.
struct NamedSize {
  absl::string_view path;
  int64_t value = 0;
};

NamedSize SizeOf(CutSize size, const config::PretrainConfig& config) {
  const config::ModelConfig& model = config.model();
  switch (size) {
    case CutSize::kHidden:
      return {"model.hidden_size", model.hidden_size()};
    case CutSize::kFfn:
      return {"model.ffn_hidden_size", model.ffn_hidden_size()};
    case CutSize::kHeads:
      return {"model.num_attention_heads", model.num_attention_heads()};
    case CutSize::kQueryGroups:
      return {"model.num_query_groups", model.num_query_groups()};
    case CutSize::kHeadChannels:
      return {"model.kv_channels", model.kv_channels() * model.num_attention_heads()};
    case CutSize::kVocabularyMultiple:
      return {"model.make_vocab_size_divisible_by", model.make_vocab_size_divisible_by()};
    case CutSize::kSamples:
      return {"train.micro_batch_size", config.train().micro_batch_size()};
  }
  return {};
}

}  // namespace

void CheckTensorCuts(ConfigChecker& check, const PlanGrid& grid) {
  const config::ModelConfig& model = check.resolved().model();
  const int64_t ranks = check.resolved().parallel().tensor_model_parallel_size();
  ForEachTensorCut(ranks, grid, [&](const TensorCut& cut) {
    const NamedSize size = SizeOf(cut.size, check.resolved());
    // Without groups there are as many as heads.
    if (cut.size == CutSize::kQueryGroups && !model.group_query_attention()) return;
    // Channels follow from a hidden size that has an error already.
    const bool has_channels = cut.size == CutSize::kHeadChannels;
    if (has_channels && model.hidden_size() % cut.parts != 0) return;
    if (!check.Usable({kTensor, size.path}) || cut.IsEven(double(size.value))) return;
    if (!grid.is_grid()) {
      return check.Error(size.path,
                         absl::StrCat(cut.may_be_fewer ? "must divide, or be divisible by, "
                                                       : "must be divisible by ",
                                      check.Named(kTensor)));
    }
    const std::string times =
        has_channels ? absl::StrCat("times ", check.Named("model.num_attention_heads"), " ") : "";
    check.Error(size.path, absl::StrCat(times, "must be divisible by ", cut.parts, ", the ", cut.of,
                                        " of ", NamedSizes(check), " with ", check.Named(kMode)));
  });
}

void CheckTensorGrid(ConfigChecker& check) {
  const config::PretrainConfig& config = check.resolved();
  if (check.IsDefault(kMode) || !check.Usable({kTensor}) ||
      config.parallel().tensor_model_parallel_size() == 1) {
    return;
  }
  const std::string& mode = config.parallel().tensor_parallel_mode();
  if (!absl::c_linear_search(TensorParallelModes(), mode)) {
    const std::string nearest = NearestName(mode, TensorParallelModes());
    return check.Error(
        kMode,
        absl::StrCat("expects one of \"", absl::StrJoin(TensorParallelModes(), "\", \""), "\"",
                     nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?")));
  }
  if (!check.Usable({kDepth})) return;
  if (mode == "2.5d" && config.parallel().tensor_parallel_depth() == 1) {
    return check.Error(kDepth, absl::StrCat("must be more than 1 with ", check.Named(kMode),
                                            ": one level of ranks is \"2d\""));
  }
  const absl::StatusOr<PlanGrid> grid =
      GridOfMode(mode, config.parallel().tensor_model_parallel_size(),
                 config.parallel().tensor_parallel_depth());
  if (!grid.ok())
    return check.Error(kMode, absl::StrCat(grid.status().message(), ", with ", NamedSizes(check)));
  CheckTensorCuts(check, *grid);
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path}))
      check.Error(kMode, absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
  };
  const config::ParallelConfig& parallel = config.parallel();
  const bool is_gated = config.model().swiglu() || config.model().gated_linear_unit();
  refuse(grid->is_cube && is_gated && !config.model().disable_bias_linear(),
         "model.disable_bias_linear",
         "with a gated MLP a cube has no part of the bias on each rank");
  refuse(grid->is_cube && is_gated && config.model().add_mlp_bias(), "model.add_mlp_bias",
         "with a gated MLP a cube has no part of the bias on each rank");
  refuse(config.model().model_type() != config::ModelType::gpt, "model.model_type",
         "GPT alone has layers that are cut along both dims");
  refuse(config.model().model_type() == config::ModelType::gpt && config.model().add_output_bias(),
         "model.add_output_bias", "it is available for words that are cut along one dim");
  refuse(config.model().num_experts() > 0, "model.num_experts", "experts are cut along one dim");
  refuse(config.model().softmax_type() == config::SoftmaxType::learnable, "model.softmax_type",
         "learned sinks are cut along one dim");
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
  refuse(config.diloco().sync_every() > 0, "diloco.sync_every",
         "islands are cut out of data-parallel ranks alone");
  refuse(config.gradient_compression().type() != config::GradientCompression::none,
         "gradient_compression.type", "it is not available for blocks of weights");
  refuse(parallel.param_cpu_offload(), "parallel.param_cpu_offload",
         "it is available for layers that are cut along one dim");
  refuse(parallel.grad_cpu_offload(), "parallel.grad_cpu_offload",
         "it is available for layers that are cut along one dim");
  refuse(config.optimizer().optimizer() == config::Optimizer::muon ||
             config.optimizer().optimizer() == config::Optimizer::lamb,
         "optimizer.optimizer", "it reads whole matrices, which are cut along one dim at most");
  refuse(config.logging().diagnostics_interval() > 0, "logging.diagnostics_interval",
         "it measures whole rows of what lies between layers");
  refuse(check.IsWritten("parallel.topology_file"), "parallel.topology_file",
         "it orders ranks by the messages of layers that are cut along one dim");
  refuse(config.system().cuda_graph_impl() != config::CudaGraphImpl::none, "system.cuda_graph_impl",
         "ranks of a grid have samples of their own, and with them graphs");
}

}  // namespace megatron
