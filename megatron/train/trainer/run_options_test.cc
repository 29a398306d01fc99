#include "megatron/train/trainer/run_options.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

constexpr char kBase[] =
    "model { num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32\n"
    "  untie_embeddings_and_output_weights: true }\n"
    "optimizer { lr: 0.9 lr_warmup_iters: 2 }\n"
    "train { micro_batch_size: 2 global_batch_size: 8 train_iters: 16 }\n"
    "data { stories {} }\n";

DataParallelOptions OptionsWith(const std::vector<std::string>& overrides) {
  const auto loaded = LoadConfigFromString(kBase, "base", overrides, ConfigPurpose::kDryRun);
  EXPECT_THAT(loaded, absl_testing::IsOk());
  return ToRunOptions(loaded->config, /*vocab_size=*/257).trainer.data_parallel;
}

TEST(RunOptionsTest, StagesShareTheEmbeddingThatMultiTokenPredictionReads) {
  const auto stages = [](const std::string& layout, bool untie) {
    const auto loaded = LoadConfigFromString(
        kBase, "base",
        {"parallel.pipeline_model_parallel_size=4", "model.position_embedding_type=rope",
         "model.mtp_num_layers=1", "parallel.pipeline_model_parallel_layout=" + layout,
         std::string("model.untie_embeddings_and_output_weights=") + (untie ? "true" : "false")},
        ConfigPurpose::kDryRun);
    EXPECT_THAT(loaded, absl_testing::IsOk());
    const ParallelSizes sizes = ToRunOptions(loaded->config, /*vocab_size=*/257).parallel;
    return RankGrid::Create(sizes, 4)->embedding_stages();
  };
  EXPECT_EQ(stages("Et|t|t|tmL", true), (std::vector<int>{0, 3}));
  EXPECT_EQ(stages("Ett|tt|m|L", true), (std::vector<int>{0, 2}));
  EXPECT_EQ(stages("Ett|tt|m|L", false), (std::vector<int>{0, 2, 3}));
}

TEST(RunOptionsTest, RowsOfExpertsTravelInPartsOnGpusUnlessTheHostSendsThem) {
  const auto in_parts = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(),
                     {"model.num_experts=8", "model.disable_bias_linear=true",
                      "parallel.data_parallel_size=2", "parallel.expert_model_parallel_size=2"});
    const auto loaded = LoadConfigFromString(kBase, "base", overrides, ConfigPurpose::kDryRun);
    EXPECT_THAT(loaded, absl_testing::IsOk());
    return ToRunOptions(loaded->config, /*vocab_size=*/257)
        .trainer.model.transformer.moe.dispatch_in_parts;
  };
  EXPECT_FALSE(in_parts({"system.device=cpu"}));
  EXPECT_TRUE(in_parts({"system.device=cpu", "parallel.moe_dispatch_in_parts=true"}));
  EXPECT_TRUE(in_parts({"system.device=cuda"}));
  EXPECT_FALSE(in_parts({"system.device=cuda", "parallel.distributed_backend=host"}));
  EXPECT_FALSE(in_parts({"system.device=cuda", "parallel.moe_dispatch_in_parts=false"}));
  EXPECT_FALSE(in_parts({"system.device=cuda", "parallel.expert_model_parallel_size=1"}));
}

TEST(RunOptionsTest, AsManyRowsAreSparseAsARankHasTokensInAStep) {
  const auto rows = [](std::vector<std::string> overrides) {
    overrides.push_back("parallel.sparse_gradients=true");
    const DataParallelOptions options = OptionsWith(overrides);
    EXPECT_EQ(options.sparse_table, "embedding.word_embeddings.weight");
    return options.most_sparse_rows;
  };
  EXPECT_EQ(rows({"parallel.data_parallel_size=2"}), 8 / 2 * 32);
  EXPECT_EQ(rows({"parallel.data_parallel_size=2", "parallel.context_parallel_size=2"}),
            8 / 2 * 32 / 2);
  EXPECT_EQ(rows({"parallel.context_parallel_size=4"}), 8 * 32 / 4);
  // An encoder looks its tokens up in the same table.
  EXPECT_EQ(
      rows({"parallel.data_parallel_size=2", "model.model_type=t5", "model.decoder_seq_length=16"}),
      8 / 2 * (32 + 16));
  EXPECT_EQ(OptionsWith({"parallel.data_parallel_size=2"}).sparse_table, "");
}

}  // namespace
}  // namespace megatron
