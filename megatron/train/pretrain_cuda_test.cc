// pretrain_gpt on the emulated CUDA device against pretrain_gpt on the CPU: the same program, from
// its first line to the text at the end, must leave the same bytes.
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"

namespace megatron {
namespace {

class PretrainCudaTest : public PretrainProgramTest {
 protected:
  Outcome RunOnCuda(const Arguments& more) const {
    Arguments command = Command(more);
    command[0] = ProgramPath("megatron/train/pretrain_gpt_emulated_cuda");
    const std::string log = Path("cuda.txt");
    return FinishProgram(StartProgram(command, log), log);
  }
};

std::string TextAtTheEnd(const Outcome& outcome) {
  const size_t begin = outcome.output.find("--- the model continues ---");
  const size_t end = outcome.output.find("\nfinished at", begin);
  return begin == std::string::npos ? "" : outcome.output.substr(begin, end - begin);
}

TEST_F(PretrainCudaTest, ADeviceThatIsThereIsUsedAndLeavesTheCpusBytes) {
  const Arguments text = {"--set=generation.prompt=\"1 2\"",
                          "--set=generation.tokens_to_generate=5"};
  const Outcome cpu = Run(Joined({SaveTo("cpu")}, text));
  ASSERT_EQ(cpu.exit_code, kExitDone) << cpu.output;
  const Outcome cuda = RunOnCuda(Joined({SaveTo("cuda")}, text));
  ASSERT_EQ(cuda.exit_code, kExitDone) << cuda.output;
  EXPECT_TRUE(absl::StrContains(cuda.output, "device: 1 x emulated")) << cuda.output;
  ExpectEqualCheckpoints("cpu", "cuda");
  EXPECT_FALSE(TextAtTheEnd(cpu).empty()) << cpu.output;
  EXPECT_EQ(TextAtTheEnd(cuda), TextAtTheEnd(cpu));
}

TEST_F(PretrainCudaTest, EightRanksOfAStoppedRunContinueThere) {
  const Arguments layout = {"--set=parallel.tensor_model_parallel_size=2",
                            "--set=parallel.pipeline_model_parallel_size=2",
                            "--set=parallel.data_parallel_size=2",
                            "--set=parallel.use_distributed_optimizer=true"};
  ASSERT_EQ(Run(Joined({SaveTo("cpu")}, layout)).exit_code, kExitDone);
  const Arguments parts = Joined({SaveTo("cuda"), "--set=checkpoint.async_save=true"}, layout);
  const Outcome first = RunOnCuda(Joined(parts, {"--set=train.exit_interval=5"}));
  ASSERT_EQ(first.exit_code, kExitDone) << first.output;
  EXPECT_TRUE(absl::StrContains(
      first.output, "WARNING: 8 ranks share 1 GPU: tensor 1 x pipeline 1 is faster here"))
      << first.output;
  EXPECT_TRUE(absl::StrContains(first.output, "ranks share a GPU, through host memory"))
      << first.output;
  const Outcome last = RunOnCuda(parts);
  ASSERT_EQ(last.exit_code, kExitDone) << last.output;
  ExpectEqualCheckpoints("cpu", "cuda");
}

TEST_F(PretrainCudaTest, StatesInHostMemoryLeaveTheSameBytesAndLoadWithAnyPart) {
  const Arguments half = {"--set=precision.bf16=true"};
  const Arguments offload = Joined(half, {"--set=optimizer.optimizer_cpu_offload=true"});
  ASSERT_EQ(RunOnCuda(Joined({SaveTo("without")}, half)).exit_code, kExitDone);
  const Outcome whole = RunOnCuda(Joined({SaveTo("whole")}, offload));
  ASSERT_EQ(whole.exit_code, kExitDone) << whole.output;
  ExpectEqualCheckpoints("without", "whole");

  const Arguments parts = Joined(
      {SaveTo("parts"), "--set=checkpoint.async_save=true", "--set=checkpoint.save_interval=2"},
      offload);
  const Outcome first = RunOnCuda(Joined(parts, {"--set=train.exit_interval=5"}));
  ASSERT_EQ(first.exit_code, kExitDone) << first.output;
  const Outcome last = RunOnCuda(Joined(parts, {"--set=optimizer.optimizer_offload_fraction=0.5"}));
  ASSERT_EQ(last.exit_code, kExitDone) << last.output;
  ExpectEqualCheckpoints("without", "parts");
}

TEST_F(PretrainCudaTest, StatesInFilesLeaveTheSameBytesAndLoadWithAnyPart) {
  const Arguments half = {"--set=precision.bf16=true", "--set=parallel.data_parallel_size=2",
                          "--set=parallel.use_distributed_optimizer=true"};
  const Arguments files =
      Joined(half, {"--set=optimizer.optimizer_cpu_offload=true",
                    absl::StrCat("--set=optimizer.optimizer_offload_path=", Path("states"))});
  ASSERT_EQ(RunOnCuda(Joined({SaveTo("without")}, half)).exit_code, kExitDone);
  const Arguments parts = Joined(
      {SaveTo("parts"), "--set=checkpoint.async_save=true", "--set=checkpoint.save_interval=2"},
      files);
  const Outcome first = RunOnCuda(Joined(parts, {"--set=train.exit_interval=5"}));
  ASSERT_EQ(first.exit_code, kExitDone) << first.output;
  EXPECT_TRUE(absl::StrContains(first.output, "of the first rank in a file in ")) << first.output;
  const Outcome last = RunOnCuda(Joined(parts, {"--set=optimizer.optimizer_offload_fraction=0.5"}));
  ASSERT_EQ(last.exit_code, kExitDone) << last.output;
  ExpectEqualCheckpoints("without", "parts");
  // The files have ended with the run.
  const auto left = PosixFileSystem().List(Path("states"));
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_TRUE(left->empty());
}

TEST_F(PretrainCudaTest, DelayedUpdatesLeaveTheCpusBytesAndContinue) {
  const Arguments half = {"--set=precision.bf16=true",
                          "--set=optimizer.optimizer_cpu_offload=true"};
  const Arguments late = Joined(half, {"--set=optimizer.delayed_update=true",
                                       "--set=optimizer.delayed_update_warmup_steps=1"});
  const Outcome cpu = Run(Joined({SaveTo("cpu")}, late));
  ASSERT_EQ(cpu.exit_code, kExitDone) << cpu.output;
  EXPECT_TRUE(absl::StrContains(cpu.output, "optimizer.delayed_update hides nothing on the CPU"))
      << cpu.output;
  // Each step but the first begins while the one before is being saved.
  const Arguments saves = {"--set=checkpoint.async_save=true", "--set=checkpoint.save_interval=1"};
  const Outcome cuda = RunOnCuda(Joined(Joined({SaveTo("cuda")}, saves), late));
  ASSERT_EQ(cuda.exit_code, kExitDone) << cuda.output;
  ExpectEqualCheckpoints("cpu", "cuda");

  const Arguments parts = {SaveTo("parts")};
  const Outcome first = RunOnCuda(Joined(Joined(parts, late), {"--set=train.exit_interval=5"}));
  ASSERT_EQ(first.exit_code, kExitDone) << first.output;
  const Outcome refused = RunOnCuda(Joined(parts, half));
  EXPECT_EQ(refused.exit_code, kExitConfig) << refused.output;
  EXPECT_TRUE(absl::StrContains(refused.output, "was saved with an update to come"))
      << refused.output;
  const Outcome last = RunOnCuda(Joined(parts, late));
  ASSERT_EQ(last.exit_code, kExitDone) << last.output;
  ExpectEqualCheckpoints("cpu", "parts");
}

TEST_F(PretrainCudaTest, StatesInHostMemoryLeaveTheSameBytesWithFloat8AndSharding) {
  for (const std::string recipe : {"tensorwise", "blockwise"}) {
    SCOPED_TRACE(recipe);
    const Arguments run = {"--set=precision.bf16=true",
                           "--set=precision.fp8_format=hybrid",
                           "--set=precision.fp8_recipe=" + recipe,
                           "--set=precision.fp8_param_gather=true",
                           "--set=parallel.data_parallel_size=2",
                           "--set=parallel.use_distributed_optimizer=true",
                           "--set=parallel.data_parallel_sharding_strategy=optim_grads_params"};
    const Outcome cpu = Run(Joined({SaveTo("cpu_" + recipe)}, run));
    ASSERT_EQ(cpu.exit_code, kExitDone) << cpu.output;
    const Outcome without = RunOnCuda(Joined({SaveTo("without_" + recipe)}, run));
    ASSERT_EQ(without.exit_code, kExitDone) << without.output;
    const Outcome with = RunOnCuda(
        Joined({SaveTo("with_" + recipe), "--set=optimizer.optimizer_cpu_offload=true"}, run));
    ASSERT_EQ(with.exit_code, kExitDone) << with.output;
    ExpectEqualCheckpoints("cpu_" + recipe, "without_" + recipe);
    ExpectEqualCheckpoints("without_" + recipe, "with_" + recipe);
  }
}

TEST_F(PretrainCudaTest, ExpertsInGraphsLeaveTheCpusBytes) {
  const Arguments run = {"--set=model.num_experts=4", "--set=model.disable_bias_linear=true",
                         "--set=model.moe_aux_loss_coeff=0.01",
                         "--set=model.moe_expert_capacity_factor=1",
                         "--set=model.moe_pad_expert_input_to_capacity=true"};
  const Outcome cpu = Run(Joined({SaveTo("cpu")}, run));
  ASSERT_EQ(cpu.exit_code, kExitDone) << cpu.output;
  const Outcome cuda =
      RunOnCuda(Joined({SaveTo("cuda"), "--set=system.cuda_graph_impl=local"}, run));
  ASSERT_EQ(cuda.exit_code, kExitDone) << cuda.output;
  ExpectEqualCheckpoints("cpu", "cuda");
}

TEST_F(PretrainCudaTest, WeightsInHostMemoryLeaveTheSameBytesAndARunGoesOnWithoutThem) {
  const Arguments offload = {"--set=optimizer.optimizer_cpu_offload=true",
                             "--set=parallel.param_cpu_offload=true"};
  const Arguments text = {"--set=precision.bf16=true", "--set=generation.prompt=\"1 2\"",
                          "--set=generation.tokens_to_generate=5"};
  const Outcome without = RunOnCuda(Joined({SaveTo("without")}, text));
  ASSERT_EQ(without.exit_code, kExitDone) << without.output;
  const Outcome with = RunOnCuda(Joined(Joined({SaveTo("with")}, text), offload));
  ASSERT_EQ(with.exit_code, kExitDone) << with.output;
  ExpectEqualCheckpoints("without", "with");
  EXPECT_FALSE(TextAtTheEnd(with).empty());
  EXPECT_EQ(TextAtTheEnd(with), TextAtTheEnd(without));

  const Arguments shares_out = {"--set=precision.bf16=true", "--set=parallel.data_parallel_size=2",
                                "--set=parallel.use_distributed_optimizer=true",
                                "--set=parallel.data_parallel_sharding_strategy=optim_grads_params",
                                "--set=checkpoint.async_save=true"};
  ASSERT_EQ(RunOnCuda(Joined({SaveTo("two")}, shares_out)).exit_code, kExitDone);
  const Arguments parts = Joined({SaveTo("parts"), "--set=checkpoint.save_interval=2"}, shares_out);
  const Outcome first = RunOnCuda(Joined(Joined(parts, {"--set=train.exit_interval=5"}), offload));
  ASSERT_EQ(first.exit_code, kExitDone) << first.output;
  const Outcome last = RunOnCuda(parts);
  ASSERT_EQ(last.exit_code, kExitDone) << last.output;
  ExpectEqualCheckpoints("two", "parts");
}

TEST_F(PretrainCudaTest, ActivationsInHostMemoryLeaveTheSameBytes) {
  ASSERT_EQ(RunOnCuda({SaveTo("without")}).exit_code, kExitDone);
  const Outcome with = RunOnCuda({SaveTo("with"), "--set=recompute.cpu_offloading_num_layers=1"});
  ASSERT_EQ(with.exit_code, kExitDone) << with.output;
  EXPECT_TRUE(absl::StrContains(with.output, "activations of all ranks, and ")) << with.output;
  ExpectEqualCheckpoints("without", "with");
}

TEST_F(PretrainCudaTest, WeightsInFilesLeaveTheSameBytesAndARunGoesOnWithoutThem) {
  const Arguments run = {"--set=precision.bf16=true", "--set=parallel.data_parallel_size=2",
                         "--set=parallel.use_distributed_optimizer=true",
                         "--set=parallel.data_parallel_sharding_strategy=optim_grads_params"};
  const Arguments on_host = Joined(
      run, {"--set=optimizer.optimizer_cpu_offload=true", "--set=parallel.param_cpu_offload=true"});
  const Arguments files =
      Joined(on_host, {absl::StrCat("--set=optimizer.optimizer_offload_path=", Path("states")),
                       absl::StrCat("--set=parallel.param_offload_path=", Path("weights"))});
  const Outcome without = RunOnCuda(Joined({SaveTo("without")}, run));
  ASSERT_EQ(without.exit_code, kExitDone) << without.output;
  const Arguments parts = {SaveTo("parts"), "--set=checkpoint.async_save=true",
                           "--set=checkpoint.save_interval=2"};
  const Outcome first = RunOnCuda(Joined(Joined(parts, files), {"--set=train.exit_interval=3"}));
  ASSERT_EQ(first.exit_code, kExitDone) << first.output;
  EXPECT_TRUE(absl::StrContains(first.output, "weights: ")) << first.output;
  const Outcome second = RunOnCuda(Joined(Joined(parts, on_host), {"--set=train.exit_interval=6"}));
  ASSERT_EQ(second.exit_code, kExitDone) << second.output;
  const Outcome last = RunOnCuda(Joined(parts, files));
  ASSERT_EQ(last.exit_code, kExitDone) << last.output;
  ExpectEqualCheckpoints("without", "parts");
  // The files have ended with the run.
  for (const char* folder : {"states", "weights"}) {
    const auto left = PosixFileSystem().List(Path(folder));
    ASSERT_TRUE(left.ok()) << left.status();
    EXPECT_TRUE(left->empty()) << folder;
  }
}

TEST_F(PretrainCudaTest, AttentionInHostMemoryLeavesTheSameBytes) {
  const Arguments chunks = {"--set=recompute.attention_chunk_tokens=16"};
  ASSERT_EQ(RunOnCuda(Joined({SaveTo("without")}, chunks)).exit_code, kExitDone);
  const Outcome with =
      RunOnCuda(Joined({SaveTo("with"), "--set=recompute.attention_chunks_on_host=true"}, chunks));
  ASSERT_EQ(with.exit_code, kExitDone) << with.output;
  ExpectEqualCheckpoints("without", "with");
  const Outcome layers =
      RunOnCuda(Joined({SaveTo("layers"), "--set=recompute.attention_chunks_on_host=true",
                        "--set=recompute.cpu_offloading_num_layers=2"},
                       chunks));
  ASSERT_EQ(layers.exit_code, kExitDone) << layers.output;
  ExpectEqualCheckpoints("without", "layers");
}

TEST_F(PretrainCudaTest, OffloadSaysThatItDoesNothingOnTheCpu) {
  const Arguments one = {"--set=train.exit_interval=1",
                         "--set=recompute.attention_chunk_tokens=16"};
  const std::string without = Run(one).output;
  for (const auto& [field, value] : {std::pair("optimizer.optimizer_cpu_offload", "true"),
                                     std::pair("recompute.cpu_offloading_num_layers", "1"),
                                     std::pair("recompute.attention_chunks_on_host", "true")}) {
    const Outcome outcome = Run(Joined(one, {absl::StrCat("--set=", field, "=", value)}));
    EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    EXPECT_TRUE(absl::StrContains(outcome.output, absl::StrCat(field, " does nothing on the CPU")))
        << outcome.output;
    EXPECT_FALSE(absl::StrContains(without, field));
  }
  const Outcome weights = Run(Joined(one, {"--set=optimizer.optimizer_cpu_offload=true",
                                           "--set=parallel.param_cpu_offload=true"}));
  EXPECT_EQ(weights.exit_code, kExitDone) << weights.output;
  EXPECT_TRUE(
      absl::StrContains(weights.output, "parallel.param_cpu_offload does nothing on the CPU"))
      << weights.output;
}

TEST_F(PretrainCudaTest, PlansOfKernelsMustBeThereAndADeviceForThem) {
  const std::string plans = absl::StrCat("--set=system.gemm_plan_file=", Path("plans"));
  const Outcome missing = RunOnCuda({plans});
  EXPECT_EQ(missing.exit_code, kExitConfig);
  EXPECT_TRUE(absl::StrContains(missing.output, "there is no such file")) << missing.output;
  const Outcome written =
      RunOnCuda({plans, "--set=system.time_gemm_kernels=true", "--set=train.exit_interval=1"});
  EXPECT_EQ(written.exit_code, kExitDone) << written.output;
  EXPECT_EQ(RunOnCuda({plans, "--set=train.exit_interval=1"}).exit_code, kExitDone);
  const Outcome on_cpu = Run({plans});
  EXPECT_EQ(on_cpu.exit_code, kExitConfig);
  EXPECT_TRUE(absl::StrContains(on_cpu.output, "has no effect with system.device = cpu"))
      << on_cpu.output;
}

TEST_F(PretrainCudaTest, OneRankTimesProductsAndKeepsTheirPlansWithItsCheckpoints) {
  const Outcome run = RunOnCuda({SaveTo("saved"), "--set=train.exit_interval=1"});
  ASSERT_EQ(run.exit_code, kExitDone) << run.output;
  EXPECT_NE(ReadTextFile(Path("saved/gemm_plans.textproto")), "");
  const Outcome deterministic = RunOnCuda({SaveTo("deterministic"), "--set=train.exit_interval=1",
                                           "--set=system.deterministic_mode=true"});
  ASSERT_EQ(deterministic.exit_code, kExitDone) << deterministic.output;
  EXPECT_EQ(ReadTextFile(Path("deterministic/gemm_plans.textproto")), "");
}

TEST_F(PretrainCudaTest, AttentionsKernelsAreNamedAndARunThatGoesOnWithOthersSaysSo) {
  const Arguments half = {SaveTo("cuda"), "--set=precision.bf16=true",
                          "--set=model.kv_channels=64"};
  const Outcome first = RunOnCuda(Joined(half, {"--set=train.exit_interval=5"}));
  ASSERT_EQ(first.exit_code, kExitDone) << first.output;
  EXPECT_TRUE(
      absl::StrContains(first.output, "attention: flash, local; not fused: cuDNN is not here"))
      << first.output;
  const Outcome same = RunOnCuda(Joined(half, {"--set=train.exit_interval=8"}));
  ASSERT_EQ(same.exit_code, kExitDone) << same.output;
  EXPECT_FALSE(absl::StrContains(same.output, "other kernels")) << same.output;

  const Arguments local = Joined(half, {"--set=system.attention_backend=local"});
  const Outcome refused = RunOnCuda(Joined(local, {"--set=system.deterministic_mode=true"}));
  EXPECT_EQ(refused.exit_code, kExitConfig);
  EXPECT_TRUE(absl::StrContains(refused.output, "system.deterministic_mode refuses that"))
      << refused.output;
  const Outcome other = RunOnCuda(local);
  ASSERT_EQ(other.exit_code, kExitDone) << other.output;
  EXPECT_TRUE(absl::StrContains(other.output, "attention saved by flash, local, now local"))
      << other.output;
}

// The emulated device has compute capability 9.0.
TEST_F(PretrainCudaTest, WhatProductsComputeBesideIsNamedAndARunThatGoesOnOtherwiseSaysSo) {
  const std::string by_default =
      "products: the fastest, with gradients of biases, with GELU: backward";
  const Outcome first = RunOnCuda({SaveTo("cuda"), "--set=train.exit_interval=5"});
  ASSERT_EQ(first.exit_code, kExitDone) << first.output;
  EXPECT_TRUE(absl::StrContains(first.output, absl::StrCat(by_default, "\n"))) << first.output;
  const Outcome same = RunOnCuda({SaveTo("cuda"), "--set=train.exit_interval=8"});
  ASSERT_EQ(same.exit_code, kExitDone) << same.output;
  EXPECT_FALSE(absl::StrContains(same.output, "other kernels")) << same.output;

  const Arguments apart = {SaveTo("cuda"), "--set=system.fuse_gelu=none",
                           "--set=system.fuse_bias_gradients=false"};
  const Outcome refused = RunOnCuda(Joined(apart, {"--set=system.deterministic_mode=true"}));
  EXPECT_EQ(refused.exit_code, kExitConfig);
  EXPECT_TRUE(absl::StrContains(refused.output, "system.fuse_gelu")) << refused.output;
  const Outcome other = RunOnCuda(apart);
  ASSERT_EQ(other.exit_code, kExitDone) << other.output;
  EXPECT_TRUE(absl::StrContains(other.output,
                                "products saved by the fastest, with gradients of biases, with "
                                "GELU: backward, now the fastest\n"))
      << other.output;
}

TEST_F(PretrainCudaTest, AFileOrdersAttentionsKernels) {
  const Arguments run = {absl::StrCat("--set=system.attention_plan_file=", Path("attention")),
                         "--set=precision.bf16=true", "--set=model.kv_channels=64",
                         "--set=train.exit_interval=1"};
  const Outcome missing = RunOnCuda(run);
  EXPECT_EQ(missing.exit_code, kExitConfig);
  EXPECT_TRUE(absl::StrContains(missing.output, "system.attention_plan_file")) << missing.output;
  const absl::Status written = WriteFileAtomically(
      PosixFileSystem(), Path("attention"),
      "place { gpu: \"emulated\" heads { kv_channels: 64 kernel { backend: local } } }");
  ASSERT_TRUE(written.ok()) << written;
  const Outcome ordered = RunOnCuda(run);
  EXPECT_EQ(ordered.exit_code, kExitDone) << ordered.output;
  EXPECT_TRUE(absl::StrContains(ordered.output, "attention: local\n")) << ordered.output;
}

TEST_F(PretrainCudaTest, AttentionByCudnnIsRefusedWhereThereIsNone) {
  const std::vector<std::string> fused = {"--set=system.attention_backend=fused",
                                          "--set=precision.bf16=true"};
  const Outcome emulated = RunOnCuda(fused);
  EXPECT_EQ(emulated.exit_code, kExitConfig);
  EXPECT_TRUE(absl::StrContains(emulated.output, "system.attention_backend")) << emulated.output;
  EXPECT_TRUE(absl::StrContains(emulated.output, "built without cuDNN")) << emulated.output;
  const Outcome on_cpu = Run(fused);
  EXPECT_EQ(on_cpu.exit_code, kExitConfig);
  EXPECT_TRUE(absl::StrContains(on_cpu.output, "has no effect with system.device = cpu"))
      << on_cpu.output;
}

TEST_F(PretrainCudaTest, WithoutADeviceItIsRefused) {
  const Outcome outcome = Run({"--set=system.device=cuda"});
  EXPECT_EQ(outcome.exit_code, kExitConfig);
  EXPECT_TRUE(absl::StrContains(outcome.output, "there is no GPU here")) << outcome.output;
}

}  // namespace
}  // namespace megatron
