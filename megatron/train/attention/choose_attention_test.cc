#include "megatron/train/attention/choose_attention.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/attention/attention_plan_file.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron {
namespace {

using ops::AttentionKernel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kBase[] =
    "model { num_layers: 2 hidden_size: 128 num_attention_heads: 2 seq_length: 32\n"
    "        attention_dropout: 0 }\n"
    "precision { bf16: true }\n"
    "optimizer { lr: 0.1 }\n"
    "train { micro_batch_size: 1 train_iters: 4 }\n"
    "data { stories {} }\n";

AttentionChoice Choose(const std::vector<std::string>& overrides, const AttentionDevice& device,
                       const std::string& plans = "") {
  const auto loaded = LoadConfigFromString(kBase, "base", overrides, ConfigPurpose::kDryRun);
  EXPECT_THAT(loaded, absl_testing::IsOk());
  const auto file = ParseAttentionPlans(plans);
  EXPECT_THAT(file, absl_testing::IsOk());
  return ChooseAttention(loaded->config, ToRunOptions(loaded->config, 257), device, *file);
}

const AttentionDevice kHopper = {"NVIDIA H200", true, "9.19.0"};
const AttentionDevice kAmpere = {"NVIDIA A100-SXM4-80GB", false, "9.19.0"};

TEST(ChooseAttentionTest, ByTheRuleHoppersKernelsComeFirstThenCudnnsThenOurOwn) {
  const AttentionChoice choice = Choose({}, kHopper);
  EXPECT_EQ(choice.order, "flash, fused 9.19.0, local");
  EXPECT_EQ(choice.kernels.first, AttentionKernel::kHopper);
  EXPECT_EQ(choice.kernels.second, AttentionKernel::kCudnn);
  EXPECT_THAT(choice.left_out, IsEmpty());
}

TEST(ChooseAttentionTest, WhatTheDeviceDoesNotOfferIsLeftOut) {
  const AttentionChoice ampere = Choose({}, kAmpere);
  EXPECT_EQ(ampere.order, "fused 9.19.0, local");
  EXPECT_EQ(ampere.kernels.first, AttentionKernel::kCudnn);
  EXPECT_EQ(ampere.kernels.second, AttentionKernel::kOwn);
  EXPECT_THAT(ampere.left_out, ElementsAre(HasSubstr("flash: no GPU of compute capability 9.0")));
  const AttentionChoice none = Choose({}, {"NVIDIA A100-SXM4-80GB", false, ""});
  EXPECT_EQ(none.order, "local");
  EXPECT_EQ(none.kernels.first, AttentionKernel::kOwn);
  EXPECT_THAT(none.left_out, ElementsAre(HasSubstr("flash: "), "fused: cuDNN is not here"));
}

TEST(ChooseAttentionTest, WhatWouldComputeNothingIsLeftOutWithTheFieldThatSaysSo) {
  const std::vector<std::string> dropout = {"model.attention_dropout=0.1"};
  const AttentionChoice hopper = Choose(dropout, kHopper);
  EXPECT_EQ(hopper.order, "flash, local");
  EXPECT_THAT(hopper.left_out, ElementsAre("fused: cuDNN does not draw our dropout "
                                           "(model.attention_dropout = 0.1)"));
  EXPECT_EQ(Choose(dropout, kAmpere).order, "local");
  const AttentionChoice narrow = Choose({"model.kv_channels=32"}, kHopper);
  EXPECT_EQ(narrow.order, "fused 9.19.0, local");
  EXPECT_THAT(narrow.left_out, ElementsAre(HasSubstr("flash: the kernel for Hopper takes heads")));
  const AttentionChoice fp32 = Choose({"precision.bf16=false"}, kHopper);
  EXPECT_EQ(fp32.order, "local");
  EXPECT_THAT(fp32.left_out, ElementsAre("flash: the kernel for Hopper does not take fp32",
                                         "fused: cuDNN does not take fp32"));
}

TEST(ChooseAttentionTest, WindowsLeaveOutWhatTakesNoneOfAllLayers) {
  const AttentionChoice all = Choose({"model.window_size=128"}, kHopper);
  EXPECT_EQ(all.order, "flash, local");
  EXPECT_THAT(all.left_out, ElementsAre("fused: cuDNN has no windows (model.window_size = 128)"));
  EXPECT_EQ(Choose({"model.window_size=128", "model.attention_dropout=0.1"}, kHopper).order,
            "local");
  EXPECT_EQ(Choose({"model.window_size=128", "model.window_attn_skip_freq=\"2\""}, kHopper).order,
            "flash, fused 9.19.0, local");
}

TEST(ChooseAttentionTest, CappedScoresAreLeftToTheKernelsForAnyGpu) {
  const AttentionChoice capped = Choose({"model.attn_logit_softcapping=50"}, kHopper);
  EXPECT_EQ(capped.order, "local");
  EXPECT_THAT(capped.left_out, ElementsAre(HasSubstr("flash: the kernel for Hopper caps no scores"),
                                           HasSubstr("fused: cuDNN caps no scores")));
}

TEST(ChooseAttentionTest, AWrittenBackendIsTakenAlone) {
  EXPECT_EQ(Choose({"system.attention_backend=flash"}, kHopper).order, "flash, local");
  EXPECT_EQ(Choose({"system.attention_backend=fused"}, kHopper).order, "fused 9.19.0, local");
  EXPECT_EQ(Choose({"system.attention_backend=local"}, kHopper).order, "local");
  const AttentionChoice ampere = Choose({"system.attention_backend=flash"}, kAmpere);
  EXPECT_EQ(ampere.order, "local");
  EXPECT_THAT(ampere.left_out, ElementsAre(HasSubstr("flash: no GPU of compute capability 9.0")));
}

TEST(ChooseAttentionTest, AFileOverrulesTheRuleForItsGpuAndHeads) {
  const std::string plans =
      "place { gpu: \"NVIDIA H200\" heads { kv_channels: 64\n"
      "  kernel { backend: fused } kernel { backend: flash } kernel { backend: local } } }\n"
      "place { gpu: \"NVIDIA A100-SXM4-80GB\" heads { kv_channels: 64\n"
      "  kernel { backend: local } kernel { backend: fused } } }\n";
  const AttentionChoice choice = Choose({}, kHopper, plans);
  EXPECT_EQ(choice.order, "fused 9.19.0, flash, local");
  EXPECT_EQ(choice.kernels.first, AttentionKernel::kCudnn);
  EXPECT_EQ(choice.kernels.second, AttentionKernel::kHopper);
  EXPECT_EQ(Choose({}, kAmpere, plans).order, "local");
  EXPECT_EQ(Choose({"model.kv_channels=128"}, kHopper, plans).order, "flash, fused 9.19.0, local");
  EXPECT_EQ(Choose({}, {"NVIDIA H100 80GB HBM3", true, "9.19.0"}, plans).order,
            "flash, fused 9.19.0, local");
  EXPECT_EQ(Choose({"model.attention_dropout=0.1"}, kHopper, plans).order, "flash, local");
}

TEST(ChooseAttentionTest, DeterministicModeTakesCudnnsDeterministicGradients) {
  const AttentionChoice choice = Choose({"system.deterministic_mode=true"}, kHopper);
  EXPECT_EQ(choice.order, "flash, fused 9.19.0 deterministic, local");
  EXPECT_EQ(choice.kernels.second, AttentionKernel::kCudnnDeterministic);
}

}  // namespace
}  // namespace megatron
