#include "megatron/train/gemm/choose_epilogues.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/layers/transformer_options.h"
#include "megatron/ops/activation_type.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {
namespace {

using config::FuseGelu;

constexpr int kAmpere = 80, kAda = 89, kHopper = 90, kBlackwell = 100;

GemmOptions Choose(const RunOptions& options, int compute_capability) {
  return ChooseEpilogues(options, compute_capability, ProcessGroup());
}

TEST(ChooseEpiloguesTest, HopperAndNewerGpusComputeTheDerivativeOfGeluAndGradientsOfBiases) {
  for (const int capability : {kHopper, kBlackwell}) {
    const GemmOptions gemms = Choose(RunOptions(), capability);
    EXPECT_EQ(gemms.fuse_gelu, FuseGelu::backward) << capability;
    EXPECT_EQ(gemms.fuse_bias_gradients, true) << capability;
  }
}

TEST(ChooseEpiloguesTest, OlderGpusComputeNeither) {
  for (const int capability : {kAmpere, kAda}) {
    const GemmOptions gemms = Choose(RunOptions(), capability);
    EXPECT_EQ(gemms.fuse_gelu, FuseGelu::none) << capability;
    EXPECT_EQ(gemms.fuse_bias_gradients, false) << capability;
  }
}

TEST(ChooseEpiloguesTest, OneOlderGpuDecidesForAllProcesses) {
  std::vector<GemmOptions> choices(3);
  const absl::Status status = RunRanks(3, [&](int rank, const ProcessGroup& processes) {
    choices[rank] = ChooseEpilogues(RunOptions(), rank == 1 ? kAmpere : kHopper, processes);
    return absl::OkStatus();
  });
  EXPECT_THAT(status, absl_testing::IsOk());
  for (const GemmOptions& gemms : choices) {
    EXPECT_EQ(gemms.fuse_gelu, FuseGelu::none);
    EXPECT_EQ(gemms.fuse_bias_gradients, false);
  }
}

TEST(ChooseEpiloguesTest, WhatTheConfigurationSaysIsKept) {
  for (const int capability : {kAmpere, kHopper}) {
    for (const FuseGelu::Type gelu : {FuseGelu::none, FuseGelu::backward, FuseGelu::both}) {
      for (const bool biases : {false, true}) {
        RunOptions options;
        options.gemms.fuse_gelu = gelu;
        options.gemms.fuse_bias_gradients = biases;
        const GemmOptions gemms = Choose(options, capability);
        EXPECT_EQ(gemms.fuse_gelu, gelu) << capability;
        EXPECT_EQ(gemms.fuse_bias_gradients, biases) << capability;
      }
    }
  }
}

TEST(ChooseEpiloguesTest, ModelsWithoutAGeluThatProductsComputeGetNone) {
  RunOptions exact, gated, of_experts;
  exact.trainer.model.transformer.activation = ops::Activation::kGeluErf;
  gated.trainer.model.transformer.gated = true;
  of_experts.trainer.model.transformer.moe.num_experts = 4;
  for (const RunOptions* options : {&exact, &gated, &of_experts}) {
    const GemmOptions gemms = Choose(*options, kHopper);
    EXPECT_EQ(gemms.fuse_gelu, FuseGelu::none);
    EXPECT_EQ(gemms.fuse_bias_gradients, true);
  }
  of_experts.trainer.model.transformer.moe.shared_ffn_hidden_size = 8;
  EXPECT_EQ(Choose(of_experts, kHopper).fuse_gelu, FuseGelu::backward);
}

TEST(ChooseEpiloguesTest, ModelsWithoutBiasesGetNoGradientsOfThem) {
  RunOptions without;
  TransformerOptions& model = without.trainer.model.transformer;
  model.linear_bias = model.qkv_bias = false;
  EXPECT_EQ(Choose(without, kHopper).fuse_bias_gradients, false);
  model.qkv_bias = true;
  EXPECT_EQ(Choose(without, kHopper).fuse_bias_gradients, true);
}

TEST(ChooseEpiloguesTest, ProductsInFp8ComputeNeither) {
  RunOptions in_fp8;
  in_fp8.trainer.model.transformer.float8.enabled = true;
  const GemmOptions gemms = Choose(in_fp8, kHopper);
  EXPECT_EQ(gemms.fuse_gelu, FuseGelu::none);
  EXPECT_EQ(gemms.fuse_bias_gradients, false);
}

TEST(ChooseEpiloguesTest, TheRestOfTheOptionsStays) {
  RunOptions options;
  options.gemms.plan_file = "plans";
  options.gemms.time_kernels = true;
  const GemmOptions gemms = Choose(options, kHopper);
  EXPECT_EQ(gemms.plan_file, "plans");
  EXPECT_TRUE(gemms.time_kernels);
}

}  // namespace
}  // namespace megatron
