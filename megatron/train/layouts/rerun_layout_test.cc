// Steps that are computed again, on every layout: nothing is found where nothing is wrong, and one
// flipped bit is found and its rank named.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/forwarding_communicator.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"
#include "megatron/train/layouts/same_training.h"
#include "megatron/train/rerun/step_validator.h"

namespace megatron {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kSteps = 3;

void FlipABit(const Tensor& tensor) {
  if (tensor.empty() || tensor.bytes() < 8) return;
  auto* const bytes = static_cast<unsigned char*>(tensor.raw());
  bytes[tensor.bytes() / 2] ^= 4;
}

// A rank that gives others something with a flipped bit once, when it is armed: what it has
// computed wrongly.
class FlippingCommunicator : public ForwardingCommunicator {
 public:
  FlippingCommunicator(std::shared_ptr<Communicator> communicator, std::atomic<bool>* armed)
      : ForwardingCommunicator(std::move(communicator)), armed_(armed) {}

  void Run(const CollectiveCall& call, const Stream& stream) override {
    const bool computed = call.collective == Collective::kAllReduce ||
                          call.collective == Collective::kReduceScatter ||
                          call.collective == Collective::kAllToAllV ||
                          (call.collective == Collective::kExchange && !call.sends.empty());
    if (computed && armed_->exchange(false))
      FlipABit(call.collective == Collective::kExchange ? call.sends[0].tensor : call.in);
    inner().Run(call, stream);
  }

 private:
  std::shared_ptr<Communicator> Wrap(std::shared_ptr<Communicator> part) override {
    return std::make_shared<FlippingCommunicator>(std::move(part), armed_);
  }

  std::atomic<bool>* const armed_;
};

std::vector<Layout> DenseLayouts() {
  std::vector<Layout> layouts(10);
  layouts[1].data = 3;  // which share 8 samples unevenly
  layouts[2].tensor = 2;
  layouts[2].sequence_parallel = true;
  layouts[3].pipeline = 2;
  layouts[4].data = layouts[4].tensor = 2;
  layouts[4].sharding = DataSharding::kStates;
  layouts[5].data = layouts[5].pipeline = 2;
  layouts[5].sharding = DataSharding::kGradients;
  layouts[6].data = 2;
  layouts[6].sharding = DataSharding::kWeights;
  layouts[6].overlap = true;
  layouts[7].context = 2;
  layouts[7].data = 2;
  layouts[8].data = 2;
  layouts[8].overlap = true;
  layouts[9].pipeline = 2;
  layouts[9].schedule = ScheduleKind::kZeroBubbleH1;
  return layouts;
}

TrainerOptions Rerun(TrainerOptions run, int64_t interval) {
  run.rerun.mode = RerunMode::kValidateResults;
  run.rerun.interval = interval;
  return run;
}

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout) {
  LayoutRun how;
  how.layout = layout;
  how.steps = kSteps;
  how.evaluate = true;
  return TrainOnLayout(run, how, CountingSource());
}

void ExpectNothingIsFound(const ModelOptions& model, const Layout& layout) {
  SCOPED_TRACE(ToString(layout));
  const TrainerOptions run = TinyRun(model, OptimizerOptions::kAdamW);
  const LayoutOutcome plain = Train(run, layout), again = Train(Rerun(run, 1), layout);
  ExpectSameCurve(again, plain);
  EXPECT_TRUE(again.state == plain.state);
  ASSERT_EQ(again.reruns.size(), kSteps);
  for (const StepFinding& finding : again.reruns)
    EXPECT_EQ(finding.kind, StepFinding::kNothing) << finding.message;
}

TEST(RerunLayoutTest, NothingIsFoundWhereNothingIsWrong) {
  for (const Layout& layout : DenseLayouts()) ExpectNothingIsFound(SmallGpt2(), layout);
  Layout experts;
  experts.data = experts.expert = 2;
  ExpectNothingIsFound(SmallMixtral(), experts);
}

// The gradients of one rank, before they are reduced.
TEST(RerunLayoutTest, AFlippedBitOfAGradientIsNamed) {
  for (const Layout& layout : DenseLayouts()) {
    if (layout.sharding == DataSharding::kGradients || layout.sharding == DataSharding::kWeights)
      continue;  // they are reduced in the passes
    if (layout.overlap) continue;
    SCOPED_TRACE(ToString(layout));
    const TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
    const LayoutOutcome plain = Train(run, layout);
    const int culprit = layout.ranks() - 1;
    std::atomic<int> reductions{0};
    LayoutRun how;
    how.layout = layout;
    how.steps = kSteps;
    how.evaluate = true;
    how.on_piece = [&](int rank, Phase phase, ParameterBuffers* buffers) {
      if (rank != culprit || phase != Phase::kReduce || reductions++ != 1) return;
      const Bucket& bucket = buffers->buckets()[0];
      FlipABit(buffers->Gradients(bucket, bucket.range));
    };
    // The second reduction is the first one of the second step.
    const LayoutOutcome again = TrainOnLayout(Rerun(run, 2), how, CountingSource());
    ASSERT_EQ(again.reruns.size(), kSteps);
    EXPECT_EQ(again.reruns[1].kind, StepFinding::kTransient) << again.reruns[1].message;
    EXPECT_THAT(again.reruns[1].message, HasSubstr(absl::StrCat("rank ", culprit, " on ")));
    for (int rank = 0; rank < culprit; ++rank)
      EXPECT_THAT(again.reruns[1].message, Not(HasSubstr(absl::StrCat("rank ", rank, " on "))));
    ExpectSameCurve(again, plain);
    EXPECT_TRUE(again.state == plain.state);
  }
}

// The rank's next product that others get, in the passes or when gradients are reduced.
TEST(RerunLayoutTest, AFlippedBitThatOthersGetIsNamed) {
  std::vector<Layout> layouts = DenseLayouts();
  layouts.erase(layouts.begin());  // nobody gets anything
  for (const Layout& layout : layouts) {
    for (int culprit = 0; culprit < layout.ranks(); ++culprit) {
      SCOPED_TRACE(absl::StrCat(ToString(layout), ", rank ", culprit));
      const TrainerOptions run = TinyRun(SmallGpt2(), OptimizerOptions::kAdamW);
      std::vector<std::atomic<bool>> armed(static_cast<size_t>(layout.ranks()));
      std::atomic<int> steps{0};
      LayoutRun how;
      how.layout = layout;
      how.steps = kSteps;
      how.evaluate = true;
      how.wrap = [&](std::shared_ptr<Communicator> world) {
        std::atomic<bool>* const mine = &armed[static_cast<size_t>(world->rank())];
        return std::make_shared<FlippingCommunicator>(std::move(world), mine);
      };
      bool in_passes = false;
      how.on_piece = [&](int rank, Phase phase, ParameterBuffers*) {
        if (rank != culprit) return;
        const bool begins = phase == Phase::kForward && !std::exchange(in_passes, true);
        if (phase == Phase::kReduce) in_passes = false;
        if (begins && steps++ == 1) armed[static_cast<size_t>(rank)] = true;
      };
      const LayoutOutcome plain = Train(run, layout);
      const LayoutOutcome again = TrainOnLayout(Rerun(run, 2), how, CountingSource());
      EXPECT_FALSE(armed[static_cast<size_t>(culprit)]);
      ASSERT_EQ(again.reruns.size(), kSteps);
      EXPECT_EQ(again.reruns[1].kind, StepFinding::kTransient) << again.reruns[1].message;
      EXPECT_THAT(again.reruns[1].message, HasSubstr(absl::StrCat("rank ", culprit, " on ")));
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        if (rank == culprit) continue;
        EXPECT_THAT(again.reruns[1].message, Not(HasSubstr(absl::StrCat("rank ", rank, " on "))));
      }
      ExpectSameCurve(again, plain);
      EXPECT_TRUE(again.state == plain.state);
    }
  }
}

}  // namespace
}  // namespace megatron
