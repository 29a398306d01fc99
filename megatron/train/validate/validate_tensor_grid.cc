#include <cstdint>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "megatron/base/quantity.h"
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

// Checks that what is cut over the grid can be shared evenly.
void CheckThatGridDivides(ConfigChecker& check, const TensorGridShape& grid) {
  const config::PretrainConfig& config = check.resolved();
  const config::ModelConfig& model = config.model();
  const auto expect = [&](absl::string_view path, int64_t value, int64_t parts,
                          absl::string_view what) {
    if (!check.Usable({path}) || value % parts == 0) return;
    check.Error(path, absl::StrCat("must be divisible by ", parts, ", the ", what, " of ",
                                   NamedSizes(check), " with ", check.Named(kMode)));
  };
  constexpr char kSide[] = "rows and columns", kRows[] = "rows on all levels";
  const int64_t rows = int64_t{grid.side} * grid.depth;
  // The levels of a cube have parts of a weight's inputs and of the words.
  const int64_t cut = grid.is_cube ? rows : grid.side;
  const char* const of_cut = grid.is_cube ? kRows : kSide;
  expect("model.hidden_size", model.hidden_size(), cut, of_cut);
  expect("model.ffn_hidden_size", model.ffn_hidden_size(), cut, of_cut);
  expect("model.num_attention_heads", model.num_attention_heads(), grid.side, kSide);
  if (model.group_query_attention())
    expect("model.num_query_groups", model.num_query_groups(), grid.side, kSide);
  if (grid.is_cube && model.hidden_size() % cut == 0 && check.Usable({"model.kv_channels"}) &&
      model.kv_channels() * model.num_attention_heads() % cut != 0) {
    check.Error("model.kv_channels",
                absl::StrCat("times ", check.Named("model.num_attention_heads"),
                             " must be divisible by ", cut, ", the ", kRows, " of ",
                             check.Named(kTensor), " with ", check.Named(kMode)));
  }
  expect("model.make_vocab_size_divisible_by", model.make_vocab_size_divisible_by(), cut, of_cut);
  expect("train.micro_batch_size", config.train().micro_batch_size(), rows,
         grid.depth > 1 ? kRows : kSide);
}

}  // namespace

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
  const absl::StatusOr<TensorGridShape> grid = TensorGridShapeOf(config.parallel());
  if (!grid.ok())
    return check.Error(kMode, absl::StrCat(grid.status().message(), ", with ", NamedSizes(check)));
  CheckThatGridDivides(check, *grid);
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path}))
      check.Error(kMode, absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
  };
  const config::ParallelConfig& parallel = config.parallel();
  const bool is_gated = config.model().swiglu() || config.model().gated_linear_unit();
  refuse(grid->is_cube && is_gated && !config.model().disable_bias_linear(),
         "model.disable_bias_linear",
         "with a gated MLP a cube has no part of the bias on each rank");
  refuse(config.model().model_type() != config::ModelType::gpt, "model.model_type",
         "GPT alone has layers that are cut along both dims");
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
  refuse(config.optimizer().optimizer() == config::Optimizer::muon ||
             config.optimizer().optimizer() == config::Optimizer::lamb,
         "optimizer.optimizer", "it reads whole matrices, which are cut along one dim at most");
  refuse(config.logging().diagnostics_interval() > 0, "logging.diagnostics_interval",
         "it measures whole rows of what lies between layers");
  refuse(check.IsWritten("parallel.topology_file"), "parallel.topology_file",
         "it orders ranks by the messages of layers that are cut along one dim");
  refuse(config.train().auto_layout(), "train.auto_layout",
         "it looks at layouts that cut layers along one dim");
  refuse(config.system().cuda_graph_impl() != config::CudaGraphImpl::none, "system.cuda_graph_impl",
         "ranks of a grid have samples of their own, and with them graphs");
}

}  // namespace megatron
