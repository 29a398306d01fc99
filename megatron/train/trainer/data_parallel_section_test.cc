#include "megatron/train/trainer/data_parallel_section.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

constexpr char kBase[] =
    "model { num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32 }\n"
    "optimizer { lr: 0.9 }\n"
    "train { micro_batch_size: 2 global_batch_size: 8 train_iters: 16 }\n"
    "data { stories {} }\n";

config::PretrainConfig ConfigWith(const std::vector<std::string>& overrides) {
  const auto loaded = LoadConfigFromString(kBase, "base", overrides, ConfigPurpose::kDryRun);
  EXPECT_THAT(loaded, absl_testing::IsOk());
  return loaded.ok() ? loaded->config : config::PretrainConfig();
}

DataParallelOptions OptionsWith(const std::vector<std::string>& overrides) {
  return ToDataParallelOptions(ConfigWith(overrides), PackerOptions());
}

// DeepSpeed's ranks have the gradient of their own samples' mean, ours a part of the whole batch's.
TEST(DataParallelSectionTest, GradientsIn16BitsHaveDeepSpeedsFactors) {
  const auto scale = [](std::vector<std::string> overrides) {
    overrides.push_back("parallel.communication_data_type=fp16");
    const DataParallelOptions options = OptionsWith(overrides);
    EXPECT_EQ(options.gradient_dtype, DType::kFloat16);
    return options.gradient_scale;
  };
  EXPECT_EQ(scale({"parallel.data_parallel_size=4"}), 4);
  EXPECT_EQ(scale({"parallel.data_parallel_size=2", "parallel.context_parallel_size=2"}), 4);
  EXPECT_EQ(scale({"parallel.data_parallel_size=4", "parallel.gradient_predivide_factor=8"}), 0.5);
  EXPECT_EQ(scale({"parallel.data_parallel_size=4", "parallel.prescale_gradients=true"}), 1);
  const DataParallelOptions megatrons =
      OptionsWith({"parallel.data_parallel_size=4", "precision.bf16=true",
                   "parallel.grad_reduce_in_bf16=true"});
  EXPECT_EQ(megatrons.gradient_dtype, DType::kBFloat16);
  EXPECT_EQ(megatrons.gradient_scale, 1);
  EXPECT_EQ(OptionsWith({"parallel.data_parallel_size=4"}).gradient_dtype, DType::kFloat32);
}

TEST(DataParallelSectionTest, OptimizersOfOneBitBringTheirCompression) {
  const auto compression = [](const std::string& optimizer) {
    return OptionsWith({"optimizer.optimizer=" + optimizer, "optimizer.freeze_step=4"}).compression;
  };
  EXPECT_EQ(compression("onebit_adam").type, CompressionType::kOneBit);
  EXPECT_FALSE(compression("onebit_adam").joins_tensors);
  EXPECT_EQ(compression("onebit_lamb").type, CompressionType::kOneBit);
  EXPECT_TRUE(compression("onebit_lamb").joins_tensors);
  EXPECT_EQ(OptionsWith({}).compression.type, CompressionType::kNone);
}

TEST(DataParallelSectionTest, ShardsAreThoseOfTheStrategyOfADistributedOptimizer) {
  const auto sharding = [](std::vector<std::string> overrides) {
    overrides.push_back("parallel.data_parallel_size=2");
    return ToSharding(ConfigWith(overrides).parallel());
  };
  const std::string distributed = "parallel.use_distributed_optimizer=true";
  const std::string strategy = "parallel.data_parallel_sharding_strategy=";
  EXPECT_EQ(sharding({}), DataSharding::kNone);
  EXPECT_EQ(sharding({distributed}), DataSharding::kStates);
  EXPECT_EQ(sharding({distributed, strategy + "optim_grads"}), DataSharding::kGradients);
  EXPECT_EQ(sharding({distributed, strategy + "optim_grads_params"}), DataSharding::kWeights);
}

TEST(DataParallelSectionTest, OuterStepsAreMadeElsewhereWhereThereIsAServer) {
  const std::string sync = "diloco.sync_every=4";
  const config::PretrainConfig islands =
      ConfigWith({sync, "parallel.use_distributed_optimizer=true", "parallel.data_parallel_size=2",
                  "parallel.num_distributed_optimizer_instances=2"});
  EXPECT_TRUE(ToOuterOptimizerOptions(islands).enabled());
  EXPECT_FALSE(ToOuterOptimizerOptions(islands).elsewhere);
  EXPECT_EQ(ToOuterOptimizerOptions(islands).last_step, 16);
  EXPECT_FALSE(ToIslandLinkOptions(islands).enabled());
  const config::PretrainConfig island =
      ConfigWith({sync, "diloco.server_address=a:4000", "diloco.secret_file=s", "diloco.island=1",
                  "diloco.outer_lr=0.5"});
  EXPECT_TRUE(ToOuterOptimizerOptions(island).elsewhere);
  const IslandLinkOptions link = ToIslandLinkOptions(island);
  EXPECT_EQ(link.server_address, "a:4000");
  EXPECT_EQ(link.island, 1);
  EXPECT_EQ(link.outer.lr, 0.5);
}

}  // namespace
}  // namespace megatron
