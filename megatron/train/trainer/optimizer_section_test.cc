#include "megatron/train/trainer/optimizer_section.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

constexpr char kModel[] =
    "model { num_layers: 4 hidden_size: 64 num_attention_heads: 4 seq_length: 32 }\n"
    "optimizer { lr: 0.9 lr_decay_style: WSD }\n"
    "data { stories {} }\n";

OptimizerParamSchedule ScheduleWith(const std::string& train,
                                    const std::vector<std::string>& overrides) {
  const auto loaded =
      LoadConfigFromString(kModel + train, "base", overrides, ConfigPurpose::kDryRun);
  EXPECT_THAT(loaded, absl_testing::IsOk());
  return loaded.ok() ? ToSchedule(loaded->config) : OptimizerParamSchedule();
}

TEST(OptimizerSectionTest, TheScheduleCountsSamples) {
  const OptimizerParamSchedule by_iterations =
      ScheduleWith("train { micro_batch_size: 2 global_batch_size: 8 train_iters: 16 }\n",
                   {"optimizer.lr_decay_iters=12", "optimizer.lr_warmup_iters=3",
                    "optimizer.lr_wsd_decay_iters=5"});
  EXPECT_EQ(by_iterations.lr_decay_steps, 12 * 8);
  EXPECT_EQ(by_iterations.lr_warmup_steps, 3 * 8);
  EXPECT_EQ(by_iterations.wsd_decay_steps, 5 * 8);
  EXPECT_EQ(by_iterations.weight_decay_steps, 16 * 8);
  const OptimizerParamSchedule by_samples =
      ScheduleWith("train { micro_batch_size: 2 global_batch_size: 8 train_samples: 128 }\n",
                   {"optimizer.lr_decay_samples=100", "optimizer.lr_warmup_samples=20",
                    "optimizer.lr_wsd_decay_samples=30"});
  EXPECT_EQ(by_samples.lr_decay_steps, 100);
  EXPECT_EQ(by_samples.lr_warmup_steps, 20);
  EXPECT_EQ(by_samples.wsd_decay_steps, 30);
  EXPECT_EQ(by_samples.weight_decay_steps, 128);
}

TEST(OptimizerSectionTest, AFractionOfWarmupIsOfTheDecay) {
  const OptimizerParamSchedule schedule =
      ScheduleWith("train { micro_batch_size: 2 global_batch_size: 8 train_iters: 16 }\n",
                   {"optimizer.lr_decay_iters=12", "optimizer.lr_wsd_decay_iters=5",
                    "optimizer.lr_warmup_fraction=0.25"});
  EXPECT_EQ(schedule.lr_warmup_steps, 12 * 8 / 4);
}

}  // namespace
}  // namespace megatron
