#include "megatron/train/planning/layout_axes.h"

#include "gtest/gtest.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {
namespace {

// Rows of experts have no parts where a rank has all experts or one, or dispatch is deduplicated.
TEST(LayoutAxesTest, DispatchStaysInPartsWhereThatHasAnEffect) {
  config::PretrainConfig written;
  written.mutable_model()->set_num_experts(8);
  written.mutable_parallel()->set_moe_dispatch_in_parts(true);
  const auto stays = [&](const LayoutAxes& axes) {
    config::PretrainConfig config = written;
    ApplyLayout(axes, /*is_gpu=*/true, &config);
    return config.parallel().moe_dispatch_in_parts();
  };
  LayoutAxes axes;
  axes.data = 8;
  EXPECT_FALSE(stays(axes));
  axes.expert = 8;
  EXPECT_FALSE(stays(axes));
  axes.expert = 4;
  EXPECT_TRUE(stays(axes));
  axes.ranks_per_host = 2;
  EXPECT_TRUE(stays(axes));
  axes.deduplicates_dispatch = true;
  EXPECT_FALSE(stays(axes));
}

TEST(LayoutAxesTest, WhatNeedsRanksIsNotCheckedWithOne) {
  config::PretrainConfig config;
  config.mutable_train()->set_global_batch_size(7);
  config.mutable_parallel()->set_tensor_model_parallel_size(4);
  config.mutable_parallel()->set_grad_reduce_in_bf16(true);
  config.mutable_precision()->set_fp8_param_gather(true);
  config.mutable_checkpoint()->set_peer_copies(1);
  config.mutable_logging()->add_profile_ranks(3);
  config.mutable_logging()->set_pipeline_timeline_file("timeline");
  const config::PretrainConfig plain = WithoutRanks(config, LayoutAxes(), /*is_gpu=*/true);
  EXPECT_EQ(plain.parallel().ShortDebugString(), "");
  EXPECT_FALSE(plain.precision().has_fp8_param_gather());
  EXPECT_FALSE(plain.checkpoint().has_peer_copies());
  EXPECT_EQ(plain.logging().profile_ranks_size(), 0);
  EXPECT_FALSE(plain.logging().has_pipeline_timeline_file());
  EXPECT_EQ(plain.train().global_batch_size(), 7);
  config.mutable_gradient_compression()->set_type(config::GradientCompression::int8);
  config.mutable_train()->mutable_rampup_batch_size()->set_start(3);
  const config::PretrainConfig sent = WithoutRanks(config, LayoutAxes(), /*is_gpu=*/true);
  EXPECT_EQ(sent.parallel().data_parallel_size(), 2);
  EXPECT_TRUE(sent.parallel().grad_reduce_in_bf16());
  EXPECT_FALSE(sent.parallel().has_tensor_model_parallel_size());
  EXPECT_EQ(sent.train().global_batch_size(), 8);
  EXPECT_FALSE(sent.train().has_rampup_batch_size());
}

}  // namespace
}  // namespace megatron
