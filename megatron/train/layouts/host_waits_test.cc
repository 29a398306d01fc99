// Counts what the host does in a step on a GPU besides enqueuing. On the emulated device, copies
// reach the host only when it has waited for them.
#include <cstdint>

#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/tensor/emulated_cuda.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

class HostWaitsTest : public testing::Test {
 protected:
  // Returns the counts that this number of steps adds to a run of one step.
  EmulatedCudaCounts OfSteps(const TrainerOptions& options, int steps) {
    const EmulatedCudaCounts shorter = Run(options, 1), longer = Run(options, 1 + steps);
    return {longer.allocations - shorter.allocations, longer.host_waits - shorter.host_waits};
  }

 private:
  EmulatedCudaCounts Run(const TrainerOptions& options, int steps) {
    LayoutRun how;
    how.steps = steps;
    how.device = DeviceType::kCuda;
    const EmulatedCudaCounts before = CountsOfEmulatedCuda();
    TrainOnLayout(options, how, source_);
    const EmulatedCudaCounts after = CountsOfEmulatedCuda();
    return {after.allocations - before.allocations, after.host_waits - before.host_waits};
  }

  CountingSource source_;
};

TEST_F(HostWaitsTest, AStepWaitsOnceForTheNormAndTheLossAndTakesNoMemory) {
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    const EmulatedCudaCounts counts = OfSteps(TinyRun(model, OptimizerOptions::kAdamW), 5);
    EXPECT_EQ(counts.host_waits, 5);
    EXPECT_EQ(counts.allocations, 0);
  }
}

TEST_F(HostWaitsTest, AStepWithGraphsDoesNotWaitMoreOften) {
  TrainerOptions options = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  options.cuda_graphs.enabled = true;
  options.cuda_graphs.warmup_steps = 1;
  const EmulatedCudaCounts counts = OfSteps(options, 5);
  EXPECT_EQ(counts.host_waits, 5);
  EXPECT_EQ(counts.allocations, 0);
}

// Without padding the host waits in each layer for the numbers of rows.
TEST_F(HostWaitsTest, PaddedExpertsLeaveTheHostNothingToWaitFor) {
  TrainerOptions options = TinyRun(SmallMixtral(), OptimizerOptions::kAdamW);
  const EmulatedCudaCounts told = OfSteps(options, 3);
  options.model.transformer.moe.pad_to_capacity = true;
  const EmulatedCudaCounts padded = OfSteps(options, 3);
  options.cuda_graphs.enabled = true;
  options.cuda_graphs.warmup_steps = 1;
  const EmulatedCudaCounts graphed = OfSteps(options, 3);
  const int64_t layers = options.model.transformer.num_layers;
  EXPECT_GE(told.host_waits - padded.host_waits, 3 * layers);
  EXPECT_EQ(graphed.host_waits, padded.host_waits);
  EXPECT_EQ(padded.allocations, 0);
  EXPECT_EQ(graphed.allocations, 0);
}

TEST_F(HostWaitsTest, EachOptionalLoggedValueAddsOneWait) {
  TrainerOptions options = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  options.log_params_norm = options.log_num_zeros_in_grad = true;
  const EmulatedCudaCounts counts = OfSteps(options, 2);
  EXPECT_EQ(counts.host_waits, 3 * 2);
  EXPECT_EQ(counts.allocations, 0);
}

TEST_F(HostWaitsTest, AStepThatIsMeasuredWaitsOnceMore) {
  TrainerOptions options = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  options.diagnostics_interval = 2;
  const EmulatedCudaCounts counts = OfSteps(options, 6);  // steps 2 to 7
  EXPECT_EQ(counts.host_waits, 6 + 3);
  EXPECT_EQ(counts.allocations, 0);
}

TEST_F(HostWaitsTest, AStepThatIsMeasuredDoesWithoutGraphs) {
  TrainerOptions options = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
  options.cuda_graphs.enabled = true;
  options.cuda_graphs.warmup_steps = 1;
  options.diagnostics_interval = 3;
  const EmulatedCudaCounts counts = OfSteps(options, 6);
  EXPECT_EQ(counts.host_waits, 6 + 2);
  EXPECT_EQ(counts.allocations, 0);
}

}  // namespace
}  // namespace megatron
