#include "tools/calibration/check_layouts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace megatron {
namespace {

constexpr const char* kTraining = R"(
optimizer { lr: 1e-3 }
data { stories { num_bytes: 1000000 seed: 1 } }
)";

constexpr const char* kGpt = R"(
model {
  num_layers: 8 hidden_size: 256 num_attention_heads: 8 seq_length: 128
  position_embedding_type: rope hidden_dropout: 0 attention_dropout: 0
}
train { micro_batch_size: 1 global_batch_size: 8 train_iters: 10 eval_iters: 0 log_interval: 1 }
)";

constexpr const char* kLlama = R"(
model {
  num_layers: 4 hidden_size: 256 num_attention_heads: 8
  group_query_attention: true num_query_groups: 4 seq_length: 256
  position_embedding_type: rope normalization: RMSNorm swiglu: true disable_bias_linear: true
  untie_embeddings_and_output_weights: true hidden_dropout: 0 attention_dropout: 0
}
train { micro_batch_size: 1 global_batch_size: 8 train_iters: 10 eval_iters: 0 log_interval: 1 }
)";

constexpr const char* kMixture = R"(
model {
  num_layers: 4 hidden_size: 192 num_attention_heads: 6 seq_length: 128
  position_embedding_type: rope normalization: RMSNorm swiglu: true disable_bias_linear: true
  untie_embeddings_and_output_weights: true hidden_dropout: 0 attention_dropout: 0
  num_experts: 8 moe_ffn_hidden_size: 256 moe_router_topk: 2 moe_aux_loss_coeff: 0.01
}
train { micro_batch_size: 1 global_batch_size: 8 train_iters: 10 eval_iters: 0 log_interval: 1 }
)";

// Turns a word of a layout's name, such as "tp2", into a field.
std::string Field(const std::string& word) {
  const std::pair<const char*, const char*> axes[] = {
      {"tp", "parallel.tensor_model_parallel_size"},
      {"pp", "parallel.pipeline_model_parallel_size"},
      {"vp", "parallel.num_virtual_stages_per_pipeline_rank"},
      {"cp", "parallel.context_parallel_size"},
      {"dp", "parallel.data_parallel_size"},
      {"ep", "parallel.expert_model_parallel_size"},
      {"mb", "train.micro_batch_size"}};
  for (const auto& [axis, field] : axes) {
    if (word.substr(0, 2) == axis) return absl::StrCat(field, "=", word.substr(2));
  }
  if (word == "sp") return "parallel.sequence_parallel=true";
  if (word == "full") return "recompute.recompute_granularity=full";
  if (word == "selective") return "recompute.recompute_granularity=selective";
  if (word == "processes") return "parallel.ranks_as=processes";
  return "parallel.use_distributed_optimizer=true";  // zero1 and zero3
}

void Add(const char* model, const std::vector<std::string>& names,
         std::vector<CheckedLayout>* layouts) {
  for (const std::string& name : names) {
    CheckedLayout layout{model, name, {}};
    for (const std::string& word : std::vector<std::string>(absl::StrSplit(name, ' '))) {
      layout.overrides.push_back(Field(word));
      if (word == "zero3") {
        layout.overrides.push_back("parallel.data_parallel_sharding_strategy=optim_grads_params");
      }
    }
    layouts->push_back(std::move(layout));
  }
}

}  // namespace

const std::vector<CheckedModel>& CheckedModels() {
  static const auto* const models =
      new std::vector<CheckedModel>{{"gpt", absl::StrCat(kGpt, kTraining)},
                                    {"llama", absl::StrCat(kLlama, kTraining)},
                                    {"mixture", absl::StrCat(kMixture, kTraining)}};
  return *models;
}

const std::vector<CheckedLayout>& CheckedLayouts() {
  static const auto* const layouts = [] {
    auto* all = new std::vector<CheckedLayout>;
    Add("gpt", {"dp1",       "mb4",           "full",          "dp2",         "tp2",
                "tp2 sp",    "pp2",           "pp2 vp4",       "cp2",         "dp2 zero1",
                "dp2 zero3", "dp2 processes", "tp2 processes", "tp4",         "pp4",
                "pp4 vp2",   "dp4 zero1",     "tp2 dp2",       "tp2 pp2 dp2", "dp8"},
        all);
    Add("llama",
        {"dp1", "selective", "dp2", "tp2 sp", "pp2 vp2", "cp2", "cp2 dp2", "dp2 zero3", "tp4",
         "pp4 processes", "pp2 dp2", "tp2 pp2 full"},
        all);
    Add("mixture", {"dp1", "mb2", "dp2", "dp2 ep2", "tp2", "pp2", "dp4 ep4", "dp2 ep2 processes"},
        all);
    return all;
  }();
  return *layouts;
}

}  // namespace megatron
