// Training with products of 8-bit floats, as a program.

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

const Arguments& Bf16() {
  static const auto* const args = new Arguments{"--set=precision.bf16=true"};
  return *args;
}
Arguments Fp8(const std::string& format) {
  return Joined(Bf16(), {"--set=precision.fp8_format=" + format});
}
Arguments Recipe(const std::string& recipe) {
  return Joined(Fp8("hybrid"), {"--set=precision.fp8_recipe=" + recipe});
}
Arguments Delayed() {
  return Joined(Recipe("delayed"), {"--set=precision.fp8_amax_history_len=4",
                                    "--set=precision.fp8_amax_compute_algo=max"});
}

class PretrainFloat8Test : public PretrainProgramTest {
 protected:
  // The demo's model on its stories for a few steps; the loss on stories that it has not seen.
  double LossOnStories(const Arguments& precision) {
    const Outcome outcome =
        Run(Joined({"--config=gpt_demo", "--set=generation=", "--set=train.train_iters=40",
                    "--set=optimizer.lr_warmup_iters=5", "--set=train.eval_interval=40",
                    "--set=train.eval_iters=8", "--set=train.log_interval=20"},
                   precision));
    EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    return NumberAfter(outcome.output, "lm loss value: ");
  }
};

// It begins at ln(257) = 5.5. The bounds are twice the differences that were seen. They are of the
// size of what chance does in so few steps: with another seed bf16 itself ends 6 % lower.
TEST_F(PretrainFloat8Test, StoriesAreLearnedAsInBf16ButNotToTheBit) {
  const double bf16 = LossOnStories(Bf16());
  EXPECT_LT(bf16, 3);
  std::vector<double> losses = {bf16};
  const std::pair<Arguments, double> cases[] = {{Fp8("e4m3"), 0.03},
                                                {Fp8("hybrid"), 0.03},
                                                {Recipe("delayed"), 0.08},
                                                {Recipe("blockwise"), 0.03}};
  for (const auto& [precision, bound] : cases) {
    const double loss = LossOnStories(precision);
    EXPECT_NEAR(loss, bf16, bound * bf16) << precision.back();
    for (double other : losses) EXPECT_NE(loss, other) << precision.back();
    losses.push_back(loss);
  }
}

TEST_F(PretrainFloat8Test, AStoppedRunContinuesBitForBit) {
  int number = 0;
  for (const Arguments& fp8 : {Fp8("hybrid"), Delayed(), Recipe("blockwise")}) {
    SCOPED_TRACE(fp8.back());
    const std::string whole = absl::StrCat("whole", number), part = absl::StrCat("part", number);
    ++number;
    ASSERT_EQ(Run(Joined({SaveTo(whole)}, fp8)).exit_code, kExitDone);
    const Arguments parts = Joined({SaveTo(part), "--set=system.num_threads=3"}, fp8);
    ASSERT_EQ(Run(Joined(parts, {"--set=train.exit_interval=5"})).exit_code, kExitDone);
    ASSERT_EQ(Run(parts).exit_code, kExitDone);
    ExpectEqualCheckpoints(whole, part);
  }
}

TEST_F(PretrainFloat8Test, WeightsGatheredAsCodesGiveTheSameBits) {
  // Sizes that two ranks cut into whole blocks.
  const Arguments blockwise = Joined(
      Recipe("blockwise"), {"--set=model.kv_channels=128", "--set=model.ffn_hidden_size=512"});
  const std::pair<const char*, Arguments> cases[] = {
      {"optim", Fp8("hybrid")},
      {"optim_grads_params", Fp8("hybrid")},
      {"optim_grads", Delayed()},
      {"optim", blockwise},
      {"optim_grads_params", Joined(blockwise, {"--set=precision.fp8_power_of_two_scales=false"})}};
  int number = 0;
  for (const auto& [strategy, fp8] : cases) {
    SCOPED_TRACE(absl::StrCat(strategy, " ", fp8.back()));
    const Arguments shared = Joined(
        fp8, {"--set=parallel.data_parallel_size=2", "--set=parallel.tensor_model_parallel_size=2",
              "--set=parallel.use_distributed_optimizer=true",
              absl::StrCat("--set=parallel.data_parallel_sharding_strategy=", strategy)});
    const std::string plain = absl::StrCat("plain", number), codes = absl::StrCat("codes", number);
    ++number;
    const Outcome without = Run(Joined({SaveTo(plain)}, shared));
    ASSERT_EQ(without.exit_code, kExitDone) << without.output;
    const Outcome outcome =
        Run(Joined(shared, {SaveTo(codes), "--set=precision.fp8_param_gather=true"}));
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    ExpectEqualCheckpoints(plain, codes);
  }
}

const Arguments& Mixture() {
  static const auto* const args = new Arguments{
      "--set=model.num_experts=4", "--set=model.disable_bias_linear=true",
      "--set=model.moe_ffn_hidden_size=256", "--set=model.moe_shared_expert_intermediate_size=64"};
  return *args;
}

// Two ranks have other experts, or parts of them, and two ranks share their states out.
TEST_F(PretrainFloat8Test, ExpertsGatheredAsCodesGiveTheSameBits) {
  const std::pair<Arguments, const char*> cases[] = {{Fp8("hybrid"), "model"},
                                                     {Delayed(), "model"},
                                                     {Recipe("blockwise"), "model"},
                                                     {Fp8("hybrid"), "tensor"},
                                                     {Recipe("blockwise"), "tensor"}};
  int number = 0;
  for (const auto& [fp8, axis] : cases) {
    SCOPED_TRACE(absl::StrCat(fp8.back(), " ", axis));
    const Arguments shared =
        Joined(Joined(fp8, Mixture()),
               {"--set=train.micro_batch_size=1", "--set=parallel.data_parallel_size=4",
                absl::StrCat("--set=parallel.expert_", axis, "_parallel_size=2"),
                "--set=parallel.use_distributed_optimizer=true",
                "--set=parallel.data_parallel_sharding_strategy=optim_grads_params"});
    const std::string plain = absl::StrCat("plain", number), codes = absl::StrCat("codes", number);
    ++number;
    const Outcome without = Run(Joined({SaveTo(plain)}, shared));
    ASSERT_EQ(without.exit_code, kExitDone) << without.output;
    const Outcome with =
        Run(Joined(shared, {SaveTo(codes), "--set=precision.fp8_param_gather=true"}));
    ASSERT_EQ(with.exit_code, kExitDone) << with.output;
    ExpectEqualCheckpoints(plain, codes);
  }
}

TEST_F(PretrainFloat8Test, AMixtureContinuesBitForBitAndMayPutGradientsOff) {
  int number = 0;
  for (const Arguments& fp8 : {Fp8("hybrid"), Delayed(), Recipe("blockwise")}) {
    SCOPED_TRACE(fp8.back());
    const std::string whole = absl::StrCat("whole", number), part = absl::StrCat("part", number);
    ++number;
    const Arguments layout =
        Joined(Joined(fp8, Mixture()),
               {"--set=train.micro_batch_size=1", "--set=parallel.data_parallel_size=2",
                "--set=parallel.expert_model_parallel_size=2",
                "--set=parallel.pipeline_model_parallel_size=2"});
    const Outcome first = Run(Joined({SaveTo(whole)}, layout));
    ASSERT_EQ(first.exit_code, kExitDone) << first.output;
    const Arguments later = Joined(layout, {SaveTo(part), "--set=system.num_threads=3",
                                            "--set=parallel.pipeline_schedule=zb_h1"});
    ASSERT_EQ(Run(Joined(later, {"--set=train.exit_interval=5"})).exit_code, kExitDone);
    const Outcome rest = Run(later);
    ASSERT_EQ(rest.exit_code, kExitDone) << rest.output;
    ExpectEqualCheckpoints(whole, part);
  }
}

// The first step's scales of experts depend on the layout, and no later one's.
TEST_F(PretrainFloat8Test, AMixtureTrainsOnAnyAxisWhatOneRankTrains) {
  for (const Arguments& fp8 : {Delayed(), Recipe("blockwise")}) {
    SCOPED_TRACE(fp8.back());
    const Arguments mixture = Joined(fp8, Mixture());
    const Outcome alone = Run(mixture);
    ASSERT_EQ(alone.exit_code, kExitDone) << alone.output;
    const double want = NumberAfter(alone.output, "lm loss value: ");
    for (const Arguments& layout : std::vector<Arguments>{
             {"--set=parallel.data_parallel_size=4", "--set=parallel.expert_model_parallel_size=4",
              "--set=train.micro_batch_size=1"},
             {"--set=parallel.context_parallel_size=2", "--set=parallel.data_parallel_size=2",
              "--set=parallel.expert_model_parallel_size=2",
              "--set=parallel.expert_tensor_parallel_size=2", "--set=train.micro_batch_size=1"}}) {
      const Outcome together = Run(Joined(mixture, layout));
      ASSERT_EQ(together.exit_code, kExitDone) << together.output;
      EXPECT_NEAR(NumberAfter(together.output, "lm loss value: "), want, 4e-3 * want);
    }
  }
}

// Scales are those of all micro-batches, and so do not depend on their size; a checkpoint of ranks
// that share the model is continued by one that has it all.
TEST_F(PretrainFloat8Test, DelayedScalesDependOnNoLayout) {
  const Outcome alone = Run(Delayed());
  ASSERT_EQ(alone.exit_code, kExitDone) << alone.output;
  const double want = NumberAfter(alone.output, "lm loss value: ");
  const Arguments cut = Joined(Delayed(), {SaveTo("cut"), "--set=train.micro_batch_size=1",
                                           "--set=parallel.tensor_model_parallel_size=2",
                                           "--set=parallel.pipeline_model_parallel_size=2"});
  ASSERT_EQ(Run(Joined(cut, {"--set=train.exit_interval=5"})).exit_code, kExitDone);
  const Outcome rest = Run(Joined(Delayed(), {SaveTo("cut")}));
  ASSERT_EQ(rest.exit_code, kExitDone) << rest.output;
  EXPECT_NEAR(NumberAfter(rest.output, "lm loss value: "), want, 2e-3 * want);
}

const Arguments& Latent() {
  static const auto* const args = new Arguments{"--set=model.multi_latent_attention=true",
                                                "--set=model.position_embedding_type=rope",
                                                "--set=model.qk_layernorm=true",
                                                "--set=model.q_lora_rank=48",
                                                "--set=model.kv_lora_rank=32",
                                                "--set=model.qk_head_dim=16",
                                                "--set=model.qk_pos_emb_head_dim=16",
                                                "--set=model.v_head_dim=16"};
  return *args;
}

TEST_F(PretrainFloat8Test, LatentAttentionContinuesBitForBitAndTrainsTheSameOnAnyAxis) {
  int number = 0;
  for (const Arguments& fp8 : {Fp8("hybrid"), Delayed()}) {
    SCOPED_TRACE(fp8.back());
    const Arguments latent = Joined(Joined(fp8, Latent()), {"--set=train.micro_batch_size=1"});
    const std::string whole = absl::StrCat("whole", number), part = absl::StrCat("part", number);
    ++number;
    const Outcome alone = Run(Joined(latent, {SaveTo(whole)}));
    ASSERT_EQ(alone.exit_code, kExitDone) << alone.output;
    const Arguments parts = Joined(latent, {SaveTo(part), "--set=system.num_threads=3"});
    ASSERT_EQ(Run(Joined(parts, {"--set=train.exit_interval=5"})).exit_code, kExitDone);
    ASSERT_EQ(Run(parts).exit_code, kExitDone);
    ExpectEqualCheckpoints(whole, part);
    const double want = NumberAfter(alone.output, "lm loss value: ");
    for (const Arguments& layout :
         std::vector<Arguments>{{"--set=parallel.tensor_model_parallel_size=2",
                                 "--set=parallel.sequence_parallel=true",
                                 "--set=parallel.pipeline_model_parallel_size=2",
                                 "--set=parallel.data_parallel_size=2",
                                 "--set=parallel.use_distributed_optimizer=true",
                                 "--set=precision.fp8_param_gather=true"},
                                {"--set=parallel.context_parallel_size=2",
                                 "--set=parallel.tensor_model_parallel_size=2"}}) {
      const Outcome together = Run(Joined(latent, layout));
      ASSERT_EQ(together.exit_code, kExitDone) << together.output;
      EXPECT_NEAR(NumberAfter(together.output, "lm loss value: "), want, 4e-3 * want);
    }
  }
}

TEST_F(PretrainFloat8Test, ARunFromABf16CheckpointSaysThatItKnowsNoEarlierSteps) {
  ASSERT_EQ(Run(Joined({SaveTo("bf16")}, Bf16())).exit_code, kExitDone);
  const Outcome outcome = Run(Joined(Delayed(), {"--set=checkpoint.load=\"" + Path("bf16") + "\"",
                                                 "--set=checkpoint.finetune=true"}));
  EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  EXPECT_TRUE(absl::StrContains(outcome.output, "has no largest magnitudes of earlier steps"))
      << outcome.output;
}

TEST_F(PretrainFloat8Test, ARunSaysThatItIsInFp8AndContinuesInNothingElse) {
  const Outcome first =
      Run(Joined({SaveTo("parts"), "--set=train.exit_interval=5"}, Fp8("hybrid")));
  ASSERT_EQ(first.exit_code, kExitDone);
  EXPECT_TRUE(absl::StrContains(first.output, "with products in FP8, gradients in e5m2"))
      << first.output;
  for (const Arguments& other : {Bf16(), Fp8("e4m3"), Delayed()}) {
    const Outcome outcome = Run(Joined({SaveTo("parts")}, other));
    EXPECT_NE(outcome.exit_code, kExitDone);
    EXPECT_TRUE(absl::StrContains(outcome.output, "fp8_")) << outcome.output;
  }
}

TEST_F(PretrainFloat8Test, EveryAxisTrainsWhatOneRankTrains) {
  const Arguments fp8 = Joined(Fp8("hybrid"), {"--set=train.micro_batch_size=1"});
  const Outcome alone = Run(fp8);
  ASSERT_EQ(alone.exit_code, kExitDone) << alone.output;
  const double want = NumberAfter(alone.output, "lm loss value: ");
  for (const Arguments& layout : std::vector<Arguments>{
           {"--set=parallel.tensor_model_parallel_size=2", "--set=parallel.sequence_parallel=true",
            "--set=parallel.pipeline_model_parallel_size=2", "--set=parallel.data_parallel_size=2",
            "--set=parallel.use_distributed_optimizer=true",
            "--set=parallel.data_parallel_sharding_strategy=optim_grads_params"},
           {"--set=parallel.context_parallel_size=2",
            "--set=parallel.tensor_model_parallel_size=2"}}) {
    const Outcome together = Run(Joined(fp8, layout));
    ASSERT_EQ(together.exit_code, kExitDone) << together.output;
    EXPECT_NEAR(NumberAfter(together.output, "lm loss value: "), want, 2e-3 * want);
  }
}

}  // namespace
}  // namespace megatron
