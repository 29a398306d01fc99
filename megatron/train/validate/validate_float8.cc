#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/ops/float8/float8_tensor.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/train/costs/layer_shape.h"
#include "megatron/train/recipes/model_rules_of.h"
#include "megatron/train/validate/rules.h"

namespace megatron {
namespace {

constexpr char kFormat[] = "precision.fp8_format";
constexpr char kRecipe[] = "precision.fp8_recipe";
constexpr char kEnds[] = "precision.first_last_layers_bf16";
constexpr char kStart[] = "precision.num_layers_at_start_in_bf16";
constexpr char kEnd[] = "precision.num_layers_at_end_in_bf16";
constexpr char kTensor[] = "parallel.tensor_model_parallel_size";
constexpr char kExpertTensor[] = "parallel.expert_tensor_parallel_size";
constexpr char kExpertFfn[] = "model.moe_ffn_hidden_size";
constexpr char kSharedFfn[] = "model.moe_shared_expert_intermediate_size";

void MustBeAligned(ConfigChecker& check, absl::string_view path, int64_t features) {
  if (features % ops::kFloat8Alignment == 0) return;
  check.Error(path, absl::StrCat("makes matrices with ", features,
                                 " features on a rank: ", check.Named(kFormat),
                                 " needs a multiple of ", ops::kFloat8Alignment));
}

// Features of feed-forward layers, which are cut over ranks.
struct CutFeatures {
  const char* path;
  int64_t features, ranks;
};
std::vector<CutFeatures> CutFeaturesOf(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  const config::ParallelConfig& parallel = check.resolved().parallel();
  std::vector<CutFeatures> all;
  const auto append = [&](const char* path, int64_t features, const char* ranks_path,
                          int64_t ranks) {
    if (check.Usable({path, ranks_path})) all.push_back({path, features, ranks});
  };
  append("model.ffn_hidden_size", model.ffn_hidden_size(), kTensor,
         parallel.tensor_model_parallel_size());
  if (!check.IsWritten("model.num_experts")) return all;
  append(kExpertFfn, model.moe_ffn_hidden_size(), kExpertTensor,
         parallel.expert_tensor_parallel_size());
  if (model.moe_shared_expert_intermediate_size() > 0) {
    append(kSharedFfn, model.moe_shared_expert_intermediate_size(), kTensor,
           parallel.tensor_model_parallel_size());
  }
  return all;
}

// What the matrices of latent attention read and write, on a rank, and the fields that make it.
struct LatentFeatures {
  const char* path;
  int64_t features;
  bool is_cut;  // over tensor-parallel ranks, as heads are
};
constexpr char kOwn[] = "model.qk_head_dim";
constexpr char kRotated[] = "model.qk_pos_emb_head_dim";
constexpr char kValue[] = "model.v_head_dim";
constexpr char kQueries[] = "model.q_lora_rank";
constexpr char kKeys[] = "model.kv_lora_rank";

std::vector<LatentFeatures> LatentFeaturesOf(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  const int64_t ranks = check.resolved().parallel().tensor_model_parallel_size();
  // Without a value these two mean something, too.
  const auto is_wrong = [&](const char* path) {
    return (check.IsWritten(path) || check.locations().IsBroken(path)) && !check.Usable({path});
  };
  if (!check.Usable({"model.num_attention_heads", kOwn, kRotated, kKeys, kTensor}) ||
      is_wrong(kQueries) || is_wrong(kValue)) {
    return {};
  }
  if (model.num_attention_heads() % ranks != 0) return {};
  const int64_t heads = model.num_attention_heads() / ranks, value = ValueHeadDim(model);
  return {{kQueries, model.q_lora_rank(), false},
          {kKeys, model.kv_lora_rank(), false},
          {kRotated, model.kv_lora_rank() + model.qk_pos_emb_head_dim(), false},
          {kOwn, heads * (model.qk_head_dim() + model.qk_pos_emb_head_dim()), true},
          {kOwn, heads * (model.qk_head_dim() + value), true},
          {kValue, heads * value, true}};
}

// Sizes are often sums of others, so that the first one that is wrong is told.
void CheckLatentSizes(ConfigChecker& check) {
  for (const LatentFeatures& size : LatentFeaturesOf(check)) {
    if (size.features % ops::kFloat8Alignment == 0) continue;
    return MustBeAligned(check, size.path, size.features);
  }
}

// Other rules refuse sizes that do not divide evenly over ranks.
void CheckSizes(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  const int64_t ranks = check.resolved().parallel().tensor_model_parallel_size();
  if (check.Usable({"model.hidden_size"}))
    MustBeAligned(check, "model.hidden_size", model.hidden_size());
  for (const CutFeatures& cut : CutFeaturesOf(check)) {
    if (cut.features % cut.ranks == 0) MustBeAligned(check, cut.path, cut.features / cut.ranks);
  }
  if (model.multi_latent_attention()) return CheckLatentSizes(check);
  if (!check.Usable(
          {"model.kv_channels", "model.num_attention_heads", "model.num_query_groups", kTensor})) {
    return;
  }
  const int64_t heads = model.num_attention_heads(), groups = model.num_query_groups();
  if (ranks > groups) {
    return check.Error(kTensor, absl::StrCat("is more than ", check.Named("model.num_query_groups"),
                                             ": not with ", check.Named(kFormat)));
  }
  if (groups % ranks != 0 || heads % groups != 0) return;
  MustBeAligned(check, "model.kv_channels", heads / ranks * model.kv_channels());
  if (heads * model.kv_channels() / ranks % ops::kFloat8Alignment == 0)
    MustBeAligned(check, "model.kv_channels", (heads + 2 * groups) / ranks * model.kv_channels());
}

// Blocks of 128 features must not lie on two ranks: they would have two scales.
void CheckCutsOfBlocks(ConfigChecker& check) {
  const config::ModelConfig& model = check.resolved().model();
  const int64_t ranks = check.resolved().parallel().tensor_model_parallel_size();
  const auto check_cut = [&](absl::string_view path, int64_t features, int64_t over) {
    if (over == 1 || features % over != 0 || features / over % kFloat8Block == 0) return;
    check.Error(path, absl::StrCat("is cut into ", features / over,
                                   " features for each of several ranks: ", check.Named(kRecipe),
                                   " needs a multiple of ", kFloat8Block));
  };
  for (const CutFeatures& cut : CutFeaturesOf(check)) check_cut(cut.path, cut.features, cut.ranks);
  if (model.multi_latent_attention()) {
    for (const LatentFeatures& size : LatentFeaturesOf(check))
      if (size.is_cut) check_cut(size.path, size.features * ranks, ranks);
    return;
  }
  if (!check.Usable(
          {kTensor, "model.kv_channels", "model.num_attention_heads", "model.num_query_groups"})) {
    return;
  }
  const int64_t heads = model.num_attention_heads(), groups = model.num_query_groups();
  check_cut("model.kv_channels", heads * model.kv_channels(), ranks);
  check_cut("model.kv_channels", (heads + 2 * groups) * model.kv_channels(), ranks);
}

void CheckBlocks(ConfigChecker& check) {
  CheckCutsOfBlocks(check);
  const config::ModelConfig& model = check.resolved().model();
  const config::ParallelConfig& parallel = check.resolved().parallel();
  const config::SystemConfig& system = check.resolved().system();
  if (system.has_device() ? system.device() != config::Device::cuda : CudaDeviceCount() == 0)
    return;
  const int64_t length = model.seq_length();
  // Under sequence parallelism each rank has rows of its own where weights are whole, and those of
  // each rank are multiplied alone where they are gathered in pieces.
  const bool has_own_rows =
      parallel.sequence_parallel() &&
      (model.multi_latent_attention() || model.mtp_num_layers() > 0 || parallel.tp_comm_overlap());
  const int64_t ranks =
      parallel.context_parallel_size() * (has_own_rows ? parallel.tensor_model_parallel_size() : 1);
  if (model.model_type() != config::ModelType::gpt) {
    check.Error(kRecipe, "is available on a GPU with model.model_type: gpt alone");
  } else if (check.Usable({"model.seq_length"}) && length % (4 * ranks) != 0) {
    check.Error("model.seq_length", absl::StrCat("gives a rank ", length / ranks,
                                                 " tokens of a sample: ", check.Named(kRecipe),
                                                 " needs a multiple of 4 on a GPU"));
  }
}

void CheckEnds(ConfigChecker& check) {
  const config::PretrainConfig& config = check.resolved();
  const config::PrecisionConfig& precision = config.precision();
  if (!precision.first_last_layers_bf16()) return;
  int64_t layers = TotalLayers(config.model());
  for (const StackLayers& stack : ModelRulesOf(config.model()).StacksOf(config.model())) {
    if (!check.Usable({kStart, kEnd, stack.field})) return;
    layers = std::min(layers, stack.num_layers);
  }
  if (precision.num_layers_at_start_in_bf16() + precision.num_layers_at_end_in_bf16() >= layers) {
    check.Error(kEnds, absl::StrCat("leaves no layer for ", check.Named(kFormat), ": with ",
                                    check.Named(kStart), " and ", check.Named(kEnd), " all of ",
                                    layers, " are in bf16"));
  }
}

}  // namespace

void CheckFloat8(ConfigChecker& check) {
  const config::PrecisionConfig& precision = check.resolved().precision();
  if (precision.fp8_format() == config::Fp8Format::none) return;
  if (!precision.bf16()) check.Error(kFormat, "needs precision.bf16: true");
  CheckSizes(check);
  if (precision.fp8_recipe() == config::Fp8Recipe::blockwise) CheckBlocks(check);
  CheckEnds(check);
}

}  // namespace megatron
