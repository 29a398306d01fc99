#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config_defaults.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/configs/config_loader.h"
#include "megatron/train/validate/validation_errors.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kElastic[] =
    "model { num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32 }\n"
    "optimizer { lr: 1e-3 }\n"
    "train { train_iters: 10 }\n"
    "elasticity { enabled: true max_train_batch_size: 12 micro_batch_sizes: [1, 3] }\n"
    "data { mock_data: true }\n"
    "system { device: cpu }\n";

config::TrainConfig Training(const ConfigOverrides& overrides) {
  const auto loaded = LoadConfigFromString(kElastic, "x", overrides, ConfigPurpose::kDryRun);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? loaded->config.train() : config::TrainConfig();
}

TEST(ValidateElasticityTest, TheBatchStaysAndTheMicroBatchFollowsFromTheRanks) {
  for (const auto& [ranks, micro] : std::vector<std::pair<std::string, int64_t>>{
           {"1", 3}, {"2", 3}, {"3", 1}, {"4", 3}, {"6", 1}, {"12", 1}}) {
    const config::TrainConfig training = Training({"parallel.data_parallel_size=" + ranks});
    EXPECT_EQ(training.global_batch_size(), 12) << ranks;
    EXPECT_EQ(training.micro_batch_size(), micro) << ranks;
  }
}

TEST(ValidateElasticityTest, ACompletedConfigurationIsAccepted) {
  ParsedConfig parsed = ParseConfig(kElastic, "x", {"parallel.data_parallel_size=4"});
  ResolveDefaults(&parsed.config);
  EXPECT_THAT(Validate(parsed.config, parsed.locations), IsEmpty());
}

TEST(ValidateElasticityTest, BatchSizesThatAreWrittenElsewhereCanBeIgnored) {
  const config::TrainConfig training =
      Training({"train.global_batch_size=7", "train.micro_batch_size=7",
                "elasticity.ignore_non_elastic_batch_info=true"});
  EXPECT_EQ(training.global_batch_size(), 12);
  EXPECT_EQ(training.micro_batch_size(), 3);
}

TEST(ValidateElasticityTest, RefusesRanksThatCannotShareTheBatchAndNamesThoseThatCan) {
  EXPECT_THAT(ErrorsOf(kElastic, {"parallel.data_parallel_size=5"}),
              ElementsAre("--set parallel.data_parallel_size=5: parallel.data_parallel_size = 5: "
                          "cannot share the global batch "
                          "of 12 samples that the section elasticity gives; possible are 1-4, 6, "
                          "12"));
  ExpectEachIsRefused(
      kElastic,
      {{{"elasticity.micro_batch_sizes=[16]"}, "micro_batch_sizes holds 16"},
       {{"elasticity.min_gpus=13"}, "no number of data-parallel ranks from 13 to 10000"},
       {{"elasticity.num_gpus_per_node=8", "parallel.pipeline_model_parallel_size=3",
         "model.num_layers=6"},
        "num_gpus_per_node is 8 and a model has 3 ranks"},
       {{"train.global_batch_size=24"}, "which gives 12; --set train.global_batch_size= removes"},
       {{"train.micro_batch_size=1"}, "which gives 3; --set train.micro_batch_size= removes it"},
       {{"train.auto_layout=true"}, "contradicts train.auto_layout"},
       {{"elasticity.enabled=false", "train.micro_batch_size=1"},
        "elasticity.max_train_batch_size = 12: has no effect"}});
}

TEST(ValidateElasticityTest, ARunThatShrinksKeepsItsBatch) {
  constexpr char kFour[] = "parallel.data_parallel_size=4", kRestarts[] = "parallel.restarts=3",
                 kProcesses[] = "parallel.ranks_as=processes", kSave[] = "checkpoint.save=d";
  EXPECT_THAT(ErrorsOf(kElastic,
                       {kFour, kRestarts, kProcesses, kSave, "parallel.min_data_parallel_size=2"}),
              IsEmpty());
  ExpectEachIsRefused(
      kElastic,
      {{{kFour, "parallel.min_data_parallel_size=2"}, "has no effect with parallel.restarts = 0"},
       {{kFour, kRestarts, kProcesses, kSave, "parallel.min_data_parallel_size=5"},
        "must be at most parallel.data_parallel_size"},
       {{kFour, kRestarts, kProcesses, kSave, "parallel.min_data_parallel_size=2",
         "elasticity=", "train.micro_batch_size=1"},
        "needs train.global_batch_size or the section elasticity"}});
}

TEST(ValidateElasticityTest, RanksThatRecoverInProcessMayShareTheBatchUnevenly) {
  constexpr char kFive[] = "parallel.data_parallel_size=5",
                 kRecovery[] = "parallel.in_process_recovery=true",
                 kProcesses[] = "parallel.ranks_as=processes",
                 kPlain[] = "elasticity=", kBatch[] = "train.global_batch_size=12",
                 kOne[] = "train.micro_batch_size=1";
  EXPECT_THAT(ErrorsOf(kElastic, {kFive, kRecovery, kProcesses, kPlain, kBatch, kOne}), IsEmpty());
  ExpectEachIsRefused(
      kElastic,
      {{{kFive, kProcesses, kPlain, kBatch, kOne}, "must be divisible by train.micro_batch_size"},
       {{kFive, kRecovery, kProcesses, kPlain, kBatch, kOne,
         "train.calculate_per_token_loss=false"},
        "must be divisible by train.micro_batch_size"},
       {{kFive, kRecovery, kProcesses, kPlain, kBatch, kOne, "model.num_experts=4"},
        "must be divisible by train.micro_batch_size"},
       {{kFive, kRecovery, kProcesses, kPlain, kOne},
        "in_process_recovery = true: needs train.global_batch_size or the section elasticity"},
       {{kFive, kRecovery, kPlain, kBatch, kOne}, "has no effect with parallel.ranks_as = threads"},
       {{kFive, kProcesses, kPlain, kBatch, kOne, "parallel.rank_replacements=2"},
        "has no effect"}});
}

TEST(ValidateElasticityTest, RanksThatChangeTakeNoOrderOfOneNumberOfRanks) {
  const std::vector<std::string> base = {
      "parallel.data_parallel_size=4", "parallel.ranks_as=processes", "elasticity=",
      "train.global_batch_size=12",    "train.micro_batch_size=1",    "checkpoint.save=d",
      "data.dataloader_type=cyclic"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = base;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  constexpr char kSharding[] = "data.data_sharding=true",
                 kRecovery[] = "parallel.in_process_recovery=true",
                 kRestarts[] = "parallel.restarts=3",
                 kLeast[] = "parallel.min_data_parallel_size=2";
  EXPECT_THAT(ErrorsOf(kElastic, with({kSharding, kRestarts})), IsEmpty());
  EXPECT_THAT(ErrorsOf(kElastic, with({kRecovery})), IsEmpty());
  ExpectEachIsRefused(kElastic,
                      {{with({kSharding, kRecovery}),
                        "in_process_recovery = true: contradicts data.data_sharding = true"},
                       {with({kSharding, kRestarts, kLeast}),
                        "min_data_parallel_size = 2: contradicts data.data_sharding = true"},
                       {{"data.dataloader_type=cyclic", kSharding},
                        "elasticity.enabled = true: contradicts data.data_sharding = true"}});
}

TEST(ValidateElasticityTest, ShardsHaveCopiesWhereThereIsNothingElse) {
  const std::vector<std::string> base = {
      "parallel.data_parallel_size=4", "parallel.in_process_recovery=true",
      "parallel.ranks_as=processes",   "elasticity=",
      "train.global_batch_size=12",    "train.micro_batch_size=1",
      "parallel.shard_copies=1"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = base;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  constexpr char kSharded[] = "parallel.use_distributed_optimizer=true";
  EXPECT_THAT(ErrorsOf(kElastic, with({kSharded, "parallel.shard_copy_interval=5"})), IsEmpty());
  ExpectEachIsRefused(
      kElastic,
      {{with({}), "has no effect with parallel.use_distributed_optimizer = false"},
       {with({kSharded, "parallel.in_process_recovery=false"}), "has no effect"},
       {with({kSharded, "parallel.shard_copies=0", "parallel.shard_copy_interval=5"}),
        "has no effect"},
       {with({kSharded, "model.num_experts=4"}),
        "shard_copies = 1: cannot be used with model.num_experts = 4"},
       {with({kSharded, "precision.bf16=true", "precision.fp8_format=hybrid"}),
        "the scales of FP8 have no copy"},
       {with({kSharded, "optimizer.optimizer_cpu_offload=true",
              "optimizer.optimizer_offload_path=/tmp"}),
        "states in files have no copy"},
       {with({kSharded, "parallel.num_distributed_optimizer_instances=2", "diloco.sync_every=5"}),
        "each island has its own states"}});
}

}  // namespace
}  // namespace megatron
