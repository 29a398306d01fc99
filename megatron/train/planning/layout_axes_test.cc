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

}  // namespace
}  // namespace megatron
