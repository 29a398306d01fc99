#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "megatron/base/quoted.h"
#include "megatron/train/costs/lora_modules.h"
#include "megatron/train/validate/rules.h"

namespace megatron {

void CheckLora(ConfigChecker& check) {
  constexpr absl::string_view kModules = "model.lora.target_modules";
  const config::PretrainConfig& config = check.resolved();
  const config::ModelConfig& model = config.model();
  if (!model.has_lora() || !check.Usable({kModules})) return;
  const std::vector<std::string>& all = AllLoraModules();
  std::set<std::string> modules;
  for (const std::string& module : LoraModules(model.lora())) {
    if (std::find(all.begin(), all.end(), module) == all.end()) {
      return check.Error(kModules, absl::StrCat("has no meaning for ", Quoted(module),
                                                "; there are ", absl::StrJoin(all, ", ")));
    }
    if (!modules.insert(module).second)
      return check.Error(kModules, absl::StrCat("names ", module, " twice"));
  }
  const auto refuse = [&](bool broken, absl::string_view path, absl::string_view because) {
    if (broken && check.Usable({path})) {
      check.MessageError("model.lora",
                         absl::StrCat("cannot be used with ", check.Named(path), ": ", because));
    }
  };
  refuse(model.num_experts() > 0 && modules.count("linear_fc1") + modules.count("linear_fc2") > 0,
         "model.num_experts", "experts have no adapters; linear_qkv and linear_proj may have them");
  refuse(modules.count("linear_qkv") > 0 &&
             config.parallel().tensor_model_parallel_size() > model.num_query_groups(),
         "parallel.tensor_model_parallel_size",
         absl::StrCat("an adapter of linear_qkv needs a group of queries for each rank, and there "
                      "are ",
                      model.num_query_groups()));
  if (model.lora().dropout() > 0) {
    constexpr absl::string_view kPieces = "model.lora.dropout sees all tokens at once";
    refuse(config.parallel().tp_comm_overlap(), "parallel.tp_comm_overlap", kPieces);
    refuse(config.recompute().has_mlp_chunk_tokens(), "recompute.mlp_chunk_tokens", kPieces);
    refuse(config.recompute().has_attention_chunk_tokens() &&
               modules.count("linear_qkv") + modules.count("linear_proj") > 0,
           "recompute.attention_chunk_tokens", kPieces);
    if (config.data().has_random_ltd()) {
      check.MessageError("model.lora",
                         absl::StrCat("cannot be used with data.random_ltd: ", kPieces));
    }
  }
  refuse(model.multi_latent_attention(), "model.multi_latent_attention",
         "its projections have no adapters");
  refuse(model.has_mtp_num_layers(), "model.mtp_num_layers",
         "the layers that predict later tokens would have adapters too");
}

}  // namespace megatron
