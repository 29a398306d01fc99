// Layers of multi-token prediction behind those of the part in front of the last, which then has
// heads alone. parallel_equivalence_test compares such layouts with one rank.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/counted_communicator.h"
#include "megatron/models/model_harness.h"
#include "megatron/pipeline/schedule.h"
#include "megatron/pipeline/stage_plan.h"
#include "megatron/plan/simulate_step.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

// Two layers, two more, multi-token prediction, and the heads.
Layout FourStages() {
  Layout layout;
  layout.pipeline = 4;
  layout.layers = {2, 2, 0, 0};
  layout.mtp_before_last = true;
  return layout;
}

// The first stage has the heads, and the second multi-token prediction behind a layer.
Layout TurnAround() {
  Layout layout;
  layout.pipeline = layout.chunks = 2;
  layout.schedule = ScheduleKind::kZeroBubbleV;
  layout.layers = {2, 1, 1, 0};
  layout.mtp_before_last = true;
  return layout;
}

TrainerOptions UnclippedRun(const ModelOptions& model,
                            OptimizerOptions::Kind optimizer = OptimizerOptions::kSgd) {
  TrainerOptions run = TinyRun(model, optimizer);
  run.clip_grad = 0;  // The norm is a sum over stages, which is rounded.
  return run;
}

LayoutOutcome TrainSteps(const TrainerOptions& run, const Layout& layout, int steps,
                         const std::string& load = "", const std::string& save = "") {
  LayoutRun how;
  how.layout = layout;
  how.steps = steps;
  how.evaluate = steps > 0;  // of samples behind those of earlier evaluations
  how.load = load;
  how.save = save;
  return TrainOnLayout(run, how, CountingSource());
}

// The table is a copy of the first stage's on one stage either way, so sums of its gradients have
// the same summands. The other layers stay on their stages: a stage that defers weight gradients
// may sum up those of several micro-batches before it scatters them, and of how many depends on its
// place.
TEST(MtpStageTest, AStageOfItsOwnComputesTheBitsOfTheLastStage) {
  for (const ScheduleKind schedule :
       {ScheduleKind::kOneForwardOneBackward, ScheduleKind::kGPipe, ScheduleKind::kZeroBubbleH1}) {
    for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kWeights}) {
      const bool shards = sharding == DataSharding::kWeights;
      const TrainerOptions run = UnclippedRun(
          SmallMtpMixture(), shards ? OptimizerOptions::kAdamW : OptimizerOptions::kSgd);
      Layout alone = FourStages();
      alone.data = 2;
      alone.schedule = schedule;
      alone.sharding = sharding;
      alone.overlap = shards;
      SCOPED_TRACE(ToString(alone));
      Layout in_last = alone;
      in_last.mtp_before_last = false;
      const LayoutOutcome got = TrainSteps(run, alone, 3), want = TrainSteps(run, in_last, 3);
      EXPECT_EQ(got.losses, want.losses);
      EXPECT_EQ(got.evaluation, want.evaluation);
      EXPECT_TRUE(got.state == want.state);
    }
  }
}

TEST(MtpStageTest, RecomputationAndRowsOfTensorParallelRanksComputeTheBitsOfTheLastStage) {
  for (const bool recomputes_layers : {false, true}) {
    TrainerOptions run = UnclippedRun(SmallMtpMixture(), OptimizerOptions::kAdamW);
    run.model.transformer.dtype = DType::kBFloat16;
    run.model.logits_chunk = 5;
    if (recomputes_layers) {
      run.model.layer_recompute = {LayerRecompute::kUniform, 1};
    } else {
      run.model.transformer.recompute.core_attention = true;
      run.model.transformer.recompute.norm = true;
    }
    Layout alone = FourStages();
    alone.tensor = 2;
    alone.sequence_parallel = true;
    Layout in_last = alone;
    in_last.mtp_before_last = false;
    const LayoutOutcome got = TrainSteps(run, alone, 3), want = TrainSteps(run, in_last, 3);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.evaluation, want.evaluation);
    EXPECT_TRUE(got.state == want.state);
  }
}

TEST(MtpStageTest, AnyLayoutGoesOnWithWhatAStageOfItsOwnSaved) {
  std::vector<Layout> others(4);
  others[0].micro_batch_size = 4;
  others[1].tensor = others[1].pipeline = others[1].data = 2;
  others[1].sharding = DataSharding::kWeights;
  others[2] = TurnAround();
  others[2].data = 2;
  others[2].sharding = DataSharding::kStates;
  others[3] = FourStages();
  others[3].layers = {1, 2, 1, 0};
  for (const ModelOptions& model : {SmallMtp(), SmallMtpMixture()}) {
    TrainerOptions run = TinyRun(model, OptimizerOptions::kAdamW);
    run.model.transformer.dtype = DType::kBFloat16;
    for (Layout mine : {FourStages(), TurnAround()}) {
      mine.data = 2;
      mine.sharding = DataSharding::kStates;
      SCOPED_TRACE(ToString(mine));
      const std::string directory = absl::StrCat(::testing::TempDir(), "/mtp_stage");
      const LayoutOutcome whole = TrainSteps(run, mine, 4);
      const LayoutOutcome saved = TrainSteps(run, mine, 2, "", directory);
      const LayoutOutcome again = TrainSteps(run, mine, 2, directory);
      EXPECT_TRUE(again.state == whole.state);
      for (const Layout& other : others) {
        SCOPED_TRACE(ToString(other));
        EXPECT_TRUE(TrainSteps(run, other, 0, directory).state == saved.state);
        // What other layouts save, this one loads.
        const std::string theirs = absl::StrCat(::testing::TempDir(), "/mtp_stage_theirs");
        const LayoutOutcome of_other = TrainSteps(run, other, 1, "", theirs);
        EXPECT_TRUE(TrainSteps(run, mine, 0, theirs).state == of_other.state);
        EXPECT_TRUE(PosixFileSystem().RemoveTree(theirs).ok());
      }
      EXPECT_TRUE(PosixFileSystem().RemoveTree(directory).ok());
    }
  }
}

// Planned are the tensors that the planner's steps exchange.
TEST(MtpStageTest, StagesSendTheTensorsThatArePlanned) {
  TrainerOptions run = UnclippedRun(SmallMtp());
  const int64_t hidden = run.model.transformer.hidden_size * CountingSource::kLength * 4;
  const int depths = static_cast<int>(run.model.mtp_num_layers);
  std::vector<BytesSent> sent(4);
  LayoutRun how;
  how.layout = FourStages();
  how.steps = 1;
  how.wrap = [&](std::shared_ptr<Communicator> communicator) {
    BytesSent* const of_rank = &sent[communicator->rank()];
    return Counted(std::move(communicator), of_rank);
  };
  TrainOnLayout(run, how, CountingSource());
  InterleavedOptions schedule;
  schedule.stages = 4;
  schedule.microbatches = 8;
  const MessageCosts messages = {1, false, {1, 1, 1.0 + depths}};
  for (const StagePlan& plan : PlanStages(InterleavedSchedule(schedule))) {
    double tensors = 0;
    for (const Step& step : plan.steps)
      tensors += messages.TensorsOf(plan, step.sends, /*are_sent=*/true);
    EXPECT_EQ(static_cast<double>(sent[plan.stage].Of("pp", Collective::kExchange)),
              tensors * static_cast<double>(hidden))
        << plan.stage;
    const double want[] = {8, 16, 8.0 * (2 + depths), 8.0 * (1 + depths)};
    EXPECT_EQ(tensors, want[plan.stage]) << plan.stage;
  }
}

}  // namespace
}  // namespace megatron
