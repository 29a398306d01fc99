#include "megatron/train/planning/unpriced_fields.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config_paths.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Fields(std::vector<std::string> overrides, bool is_gpu = true,
                                bool knows_disk = false) {
  overrides.insert(overrides.end(), {"model.hidden_dropout=0", "model.attention_dropout=0"});
  const auto loaded = LoadConfig("gpt3_857m", overrides, ConfigPurpose::kDryRun);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return UnpricedFields(loaded->config, is_gpu, knows_disk);
}

TEST(UnpricedFieldsTest, NamesWhatCostsSomething) {
  EXPECT_THAT(Fields({}), IsEmpty());
  EXPECT_THAT(
      Fields({"parallel.sum_in_rank_order=true", "optimizer.exp_avg_dtype=bf16",
              "recompute.recompute_granularity=selective", "recompute.recompute_modules=[mlp]"}),
      ElementsAre("parallel.sum_in_rank_order=true", "recompute.recompute_modules=[mlp]",
                  "optimizer.exp_avg_dtype=bf16"));
  EXPECT_THAT(Fields({"recompute.recompute_granularity=selective"}), IsEmpty());
  EXPECT_THAT(Fields({"train.logits_chunk_tokens=64"}),
              ElementsAre("train.logits_chunk_tokens=64"));
  EXPECT_THAT(Fields({"optimizer.optimizer=muon"}), IsEmpty());
  EXPECT_THAT(Fields({"optimizer.optimizer=lamb"}), IsEmpty());
  EXPECT_THAT(Fields({"optimizer.optimizer=lion", "optimizer.adam_beta2="}),
              ElementsAre("optimizer.optimizer=lion"));
  // The time on the link isn't known for the activations of a part of the layers.
  EXPECT_THAT(Fields({"recompute.cpu_offloading_num_layers=8"}),
              ElementsAre("recompute.cpu_offloading_num_layers=8"));
  EXPECT_THAT(Fields({"recompute.cpu_offloading_num_layers=12"}), IsEmpty());
  EXPECT_THAT(Fields({"optimizer.qk_clip=true"}), ElementsAre("optimizer.qk_clip=true"));
  EXPECT_THAT(Fields({"optimizer.qk_clip=true"}, /*is_gpu=*/false), IsEmpty());
  EXPECT_THAT(Fields({"system.fuse_bias_gradients=true", "system.fuse_gelu=both"}),
              ElementsAre("system.fuse_bias_gradients=true", "system.fuse_gelu=both"));
  EXPECT_THAT(Fields({"system.fuse_bias_gradients=false", "system.fuse_gelu=none"}), IsEmpty());
  EXPECT_THAT(Fields({"optimizer.freeze=embedding"}),
              ElementsAre("optimizer.freeze=[\"embedding\"]"));
  // Files take what the disk takes, if that is known.
  const std::vector<std::string> files = {"optimizer.optimizer_cpu_offload=true",
                                          "optimizer.optimizer_offload_path=/states"};
  const auto told = ElementsAre("optimizer.optimizer_offload_path=\"/states\"");
  EXPECT_THAT(Fields(files), told);
  EXPECT_THAT(Fields(files, /*is_gpu=*/true, /*knows_disk=*/true), IsEmpty());
  EXPECT_THAT(Fields(files, /*is_gpu=*/false, /*knows_disk=*/true), told);
  // Dropout is on where nothing is written.
  const auto plain = LoadConfig("gpt3_857m", {"model.hidden_dropout="}, ConfigPurpose::kDryRun);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_THAT(UnpricedFields(plain->config, /*is_gpu=*/true, /*knows_disk=*/false),
              ::testing::Contains("model.hidden_dropout=0.1"));
}

// A new field of these sections is priced by ToPlannedRun(), changes no time, or is unpriced.
TEST(UnpricedFieldsTest, EveryFieldOfLayoutsAndPrecisionsIsPricedToldOrWithoutEffectOnTime) {
  const std::set<std::string> priced = {
      "parallel.pipeline_model_parallel_split_rank",
      "parallel.tensor_model_parallel_size",
      "parallel.tensor_parallel_mode",
      "parallel.tensor_parallel_depth",
      "parallel.pipeline_model_parallel_size",
      "parallel.data_parallel_size",
      "parallel.sequence_parallel",
      "parallel.tp_comm_overlap",
      "parallel.num_layers_per_virtual_pipeline_stage",
      "parallel.decoder_first_pipeline_num_layers",
      "parallel.decoder_last_pipeline_num_layers",
      "parallel.pipeline_schedule",
      "parallel.pipeline_pass_costs",
      "parallel.num_virtual_stages_per_pipeline_rank",
      "parallel.microbatch_group_size_per_virtual_pipeline_stage",
      "parallel.pipeline_model_parallel_layout",
      "parallel.account_for_embedding_in_pipeline_split",
      "parallel.account_for_loss_in_pipeline_split",
      "parallel.use_distributed_optimizer",
      "parallel.data_parallel_sharding_strategy",
      "parallel.num_distributed_optimizer_instances",
      "parallel.outer_dp_sharding_strategy",
      "parallel.overlap_grad_reduce",
      "parallel.overlap_param_gather",  // hidden together with overlap_grad_reduce
      "parallel.grad_reduce_in_bf16",
      "parallel.communication_data_type",
      "parallel.context_parallel_size",
      "parallel.cp_comm_type",
      "parallel.hierarchical_context_parallel_sizes",
      "parallel.expert_model_parallel_size",
      "parallel.expert_tensor_parallel_size",
      "parallel.moe_deduplicated_dispatch",
      "parallel.ranks_as",
      "parallel.collective_algorithm",
      "parallel.hierarchical_collectives_ranks_per_host",
      "parallel.zero_hpz_partition_size",
      "parallel.zero_quantized_weights",
      "parallel.zero_quantized_gradients",
      "parallel.param_cpu_offload",
      "precision.fp16",
      "precision.bf16",
      "precision.fp8_format",
      "recompute.recompute_granularity",
      "recompute.mlp_chunk_tokens",
      "recompute.attention_chunk_tokens",
      "recompute.attention_chunks_on_host",
      "optimizer.optimizer_cpu_offload",
      "optimizer.optimizer_offload_fraction",
      "system.device",
      "system.num_threads",
      "system.hardware_file",
      "system.kernels_file",
  };
  const std::set<std::string> without_effect = {
      "parallel.distributed_backend",  // a machine's, where it isn't written
      "parallel.prescale_gradients",   // a factor of what is sent
      "parallel.gradient_predivide_factor",
      "parallel.distributed_timeout_minutes",
      "parallel.distributed_timeout_seconds_after_init",
      "parallel.heartbeat_timeout_seconds",
      "parallel.in_process_recovery",
      "parallel.min_data_parallel_size",
      "parallel.rank_replacements",
      "parallel.restarts",
      "parallel.shard_copy_interval",  // told with shard_copies
      "parallel.stuck_rank_timeout_seconds",
      "precision.loss_scale",
      "precision.initial_loss_scale",
      "precision.min_loss_scale",
      "precision.loss_scale_window",
      "precision.hysteresis",
      "precision.num_layers_at_start_in_bf16",  // told with first_last_layers_bf16
      "precision.num_layers_at_end_in_bf16",
      "precision.fp8_margin",
      "precision.fp8_amax_history_len",
      "precision.fp8_amax_compute_algo",
      "precision.fp8_power_of_two_scales",
      "system.gemm_plan_file",
      "system.time_gemm_kernels",
      "system.attention_plan_file",
      "system.cuda_graph_warmup_steps",
  };
  const std::vector<std::string> unpriced = UnpricedPaths();
  for (const std::string& path : LeafPaths(*config::PretrainConfig::descriptor())) {
    const bool is_asked =
        absl::StartsWith(path, "parallel.") || absl::StartsWith(path, "precision.") ||
        absl::StartsWith(path, "recompute.") || absl::StartsWith(path, "system.") ||
        path == "optimizer.optimizer" || absl::StartsWith(path, "optimizer.optimizer_");
    if (!is_asked) continue;
    const bool is_told = std::find(unpriced.begin(), unpriced.end(), path) != unpriced.end();
    EXPECT_EQ(priced.count(path) + without_effect.count(path) + is_told, 1)
        << path << ": price it in ToPlannedRun(), or add it to unpriced_fields.cc";
  }
}

}  // namespace
}  // namespace megatron
