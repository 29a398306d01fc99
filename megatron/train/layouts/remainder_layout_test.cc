// Trains with main weights that are kept as bf16 weights and remainders.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

TrainerOptions With(bool remainders, DType moments = DType::kFloat32) {
  TrainerOptions options = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  options.model.transformer.dtype = DType::kBFloat16;
  options.optimizer.exp_avg_dtype = options.optimizer.exp_avg_sq_dtype = moments;
  options.optimizer.store_param_remainders = remainders;
  return options;
}

LayoutRun On(int data, DataSharding sharding) {
  LayoutRun run;
  run.layout.data = data;
  run.layout.micro_batch_size = 8 / data;  // one micro-batch a step
  run.layout.sharding = sharding;
  run.layout.overlap = sharding == DataSharding::kWeights;
  run.steps = 3;
  return run;
}

LayoutOutcome Train(const TrainerOptions& options, const LayoutRun& run) {
  return TrainOnLayout(options, run, CountingSource());
}

int64_t Bytes(const LayoutOutcome& outcome, const std::string& kind) {
  const auto found = outcome.memory.find(kind);
  return found == outcome.memory.end() ? 0 : found->second;
}

TEST(RemainderLayoutTest, TakesTwoBytesInPlaceOfFour) {
  const LayoutOutcome whole = Train(With(false), On(1, DataSharding::kNone)),
                      split = Train(With(true), On(1, DataSharding::kNone));
  EXPECT_EQ(Bytes(whole, "master weights"), 2 * Bytes(whole, "weights"));
  EXPECT_EQ(Bytes(split, "master weights"), 0);
  EXPECT_EQ(Bytes(split, "master_remainder"), Bytes(split, "weights"));
  // Rounding differs at the start and where a master lies between two weights.
  for (size_t i = 0; i < whole.losses.size(); ++i)
    EXPECT_NEAR(split.losses[i], whole.losses[i], 1e-2 * whole.losses[i]);
  EXPECT_EQ(split.losses[0], whole.losses[0]);
}

TEST(RemainderLayoutTest, EveryShardingTrainsTheSameBits) {
  for (const DType moments : {DType::kFloat32, DType::kBFloat16, DType::kUInt8}) {
    const TrainerOptions options = With(true, moments);
    const LayoutOutcome want = Train(options, On(4, DataSharding::kNone));
    for (const DataSharding sharding :
         {DataSharding::kStates, DataSharding::kGradients, DataSharding::kWeights}) {
      SCOPED_TRACE(absl::StrCat("sharding ", static_cast<int>(sharding)));
      const LayoutOutcome got = Train(options, On(4, sharding));
      EXPECT_EQ(got.losses, want.losses);
      EXPECT_EQ(got.norms, want.norms);
      EXPECT_EQ(got.state, want.state);
    }
  }
}

TEST(RemainderLayoutTest, ContinuesBitForBitAndOnOtherLayouts) {
  const TrainerOptions options = With(true, DType::kBFloat16);
  LayoutRun whole = On(2, DataSharding::kNone), first = whole, rest = whole;
  whole.steps = 4;
  first.steps = rest.steps = 2;
  first.save = rest.load = absl::StrCat(testing::TempDir(), "/remainders");
  const LayoutOutcome want = Train(options, whole);
  Train(options, first);
  for (const DataSharding sharding :
       {DataSharding::kNone, DataSharding::kStates, DataSharding::kWeights}) {
    rest.layout.sharding = sharding;
    EXPECT_EQ(Train(options, rest).state, want.state) << static_cast<int>(sharding);
  }
  LayoutRun others = On(4, DataSharding::kStates);
  others.layout.tensor = 2;
  others.steps = 2;
  others.load = first.save;
  const LayoutOutcome elsewhere = Train(options, others);
  for (size_t i = 0; i < elsewhere.losses.size(); ++i)
    EXPECT_NEAR(elsewhere.losses[i], want.losses[2 + i], 1e-2 * want.losses[2 + i]);
}

TEST(RemainderLayoutTest, DiagnosticsSeeTheMasters) {
  TrainerOptions whole = With(false), split = With(true);
  whole.diagnostics_interval = split.diagnostics_interval = 1;
  const LayoutOutcome want = Train(whole, On(1, DataSharding::kNone)),
                      got = Train(split, On(1, DataSharding::kNone));
  EXPECT_EQ(got.losses, Train(With(true), On(1, DataSharding::kNone)).losses);
  ASSERT_EQ(got.diagnostics.size(), want.diagnostics.size());
  for (size_t step = 0; step < want.diagnostics.size(); ++step) {
    const auto &a = got.diagnostics[step].layers, &b = want.diagnostics[step].layers;
    ASSERT_EQ(a.size(), b.size());
    // Steps are a thousandth of the weights: bf16 alone would lose most of them.
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_NEAR(a[i].value, b[i].value, 0.05 * std::abs(b[i].value) + 1e-6) << b[i].name;
  }
}

}  // namespace
}  // namespace megatron
