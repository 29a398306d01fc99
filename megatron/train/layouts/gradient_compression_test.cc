// Tests runs whose gradients are summed with compression (optim/gradient_compressor.h).

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/data/sample.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

constexpr CompressionType kAll[] = {CompressionType::kInt8, CompressionType::kTopK,
                                    CompressionType::kThreshold, CompressionType::kPowerSgd};
constexpr int kSteps = 4;

TrainerOptions RunWith(CompressionType type, bool bf16 = false) {
  TrainerOptions run = TinyRun(SmallLlama(), OptimizerOptions::kAdamW);
  if (bf16) run.model.transformer.dtype = DType::kBFloat16;
  run.data_parallel.compression.type = type;
  run.data_parallel.compression.threshold = 1e-3f;
  return run;
}

Layout LayoutOf(int tensor, int pipeline, int data, DataSharding sharding = DataSharding::kNone,
                int instances = 1) {
  Layout layout;
  layout.tensor = tensor;
  layout.sequence_parallel = tensor > 1;
  layout.pipeline = pipeline;
  layout.data = data;
  layout.sharding = sharding;
  layout.optimizer_instances = instances;
  return layout;
}

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts = {LayoutOf(1, 1, 2), LayoutOf(1, 1, 4, DataSharding::kStates),
                                 LayoutOf(2, 1, 2, DataSharding::kStates), LayoutOf(1, 2, 2)};
  layouts.push_back(LayoutOf(1, 1, 4, DataSharding::kStates, /*instances=*/2));
  layouts.push_back(LayoutOf(1, 1, 4, DataSharding::kWeights, /*instances=*/2));
  return layouts;
}

LayoutOutcome Train(const TrainerOptions& run, const Layout& layout, int steps,
                    const std::string& load = "", const std::string& save = "") {
  LayoutRun how;
  how.layout = layout;
  how.steps = steps;
  how.load = load;
  how.save = save;
  return TrainOnLayout(run, how, CountingSource());
}

class GradientCompressionTest : public ::testing::Test {
 protected:
  ~GradientCompressionTest() override {
    EXPECT_TRUE(PosixFileSystem().RemoveTree(directory_).ok());
  }
  const std::string directory_ = testing::TempDir() + "/gradient_compression";
};

TEST_F(GradientCompressionTest, ARunThatGoesOnHasTheSameBits) {
  for (const CompressionType type : kAll) {
    for (const Layout& layout : Layouts()) {
      SCOPED_TRACE(absl::StrCat(static_cast<int>(type), " on ", ToString(layout)));
      const TrainerOptions run = RunWith(type, /*bf16=*/layout.pipeline > 1);
      const LayoutOutcome whole = Train(run, layout, kSteps);
      Train(run, layout, 2, /*load=*/"", directory_);
      const LayoutOutcome rest = Train(run, layout, kSteps - 2, directory_);
      ASSERT_TRUE(PosixFileSystem().RemoveTree(directory_).ok());
      EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
      EXPECT_TRUE(rest.state == whole.state);
    }
  }
}

// Where all elements count as the largest ones sums are those of a plain run.
TEST_F(GradientCompressionTest, AnyOptimizerTakesTheSums) {
  for (const OptimizerOptions::Kind kind : {OptimizerOptions::kSgd, OptimizerOptions::kLion,
                                            OptimizerOptions::kLamb, OptimizerOptions::kMuon}) {
    for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kStates}) {
      SCOPED_TRACE(testing::Message() << kind << ", sharding " << static_cast<int>(sharding));
      const Layout layout = LayoutOf(1, 1, 2, sharding);
      TrainerOptions run = TinyRun(SmallLlama(), kind);
      const LayoutOutcome plain = Train(run, layout, kSteps);
      run.data_parallel.compression.type = CompressionType::kTopK;
      run.data_parallel.compression.density = 1;
      const LayoutOutcome whole = Train(run, layout, kSteps);
      run.data_parallel.compression.density = 0.1;
      const LayoutOutcome largest = Train(run, layout, kSteps);
      for (int step = 0; step < kSteps; ++step)
        EXPECT_NEAR(whole.losses[step], plain.losses[step], 1e-6) << step;
      EXPECT_NE(largest.losses[kSteps - 1], plain.losses[kSteps - 1]);
      EXPECT_LT(largest.losses[kSteps - 1], largest.losses[0]);
    }
  }
}

TEST_F(GradientCompressionTest, OverlapDecidesNothing) {
  for (const CompressionType type : kAll) {
    for (Layout layout : Layouts()) {
      SCOPED_TRACE(absl::StrCat(static_cast<int>(type), " on ", ToString(layout)));
      const LayoutOutcome want = Train(RunWith(type), layout, kSteps);
      layout.overlap = true;
      const LayoutOutcome got = Train(RunWith(type), layout, kSteps);
      EXPECT_EQ(got.losses, want.losses);
      EXPECT_TRUE(got.state == want.state);
    }
  }
}

// With a random Q, factors of full rank have all that matrices have, also those of the rows that
// are in a shard. The Q of later steps knows the rows of the gradient before alone, which may be of
// lower rank.
TEST_F(GradientCompressionTest, FactorsOfFullRankSumAllOfTheFirstGradients) {
  for (const Layout& layout : Layouts()) {
    SCOPED_TRACE(ToString(layout));
    const LayoutOutcome plain = Train(RunWith(CompressionType::kNone), layout, kSteps);
    TrainerOptions run = RunWith(CompressionType::kPowerSgd);
    run.data_parallel.compression.rank = 1024;
    run.data_parallel.compression.min_compression_rate = 1e-6;
    const LayoutOutcome full = Train(run, layout, kSteps);
    run.data_parallel.compression.rank = 1;
    const LayoutOutcome one = Train(run, layout, kSteps);
    // The loss of a step is that of the weights before it.
    for (int step = 0; step < 2; ++step)
      EXPECT_NEAR(full.losses[step], plain.losses[step], 1e-3 * plain.losses[step]) << step;
    EXPECT_GT(std::abs(one.losses[kSteps - 1] - plain.losses[kSteps - 1]),
              10 * std::abs(full.losses[kSteps - 1] - plain.losses[kSteps - 1]));
  }
}

TEST_F(GradientCompressionTest, StepsBeforeItBeginsAreAsWithout) {
  const Layout layout = LayoutOf(1, 1, 2);
  const LayoutOutcome plain = Train(RunWith(CompressionType::kNone), layout, kSteps);
  for (const CompressionType type : kAll) {
    TrainerOptions run = RunWith(type);
    run.data_parallel.compression.start_iteration = 2;
    const LayoutOutcome got = Train(run, layout, kSteps);
    // The loss of a step is that of the weights before it.
    for (int step = 0; step < 3; ++step) EXPECT_EQ(got.losses[step], plain.losses[step]) << step;
    EXPECT_NE(got.losses[3], plain.losses[3]) << static_cast<int>(type);
  }
}

// What has not been sent belongs to ranks that are no longer there.
TEST_F(GradientCompressionTest, AnotherLayoutGoesOnFromTheWeights) {
  for (const CompressionType type : kAll) {
    const LayoutOutcome first = Train(RunWith(type), LayoutOf(1, 1, 4), 2, "", directory_);
    for (const Layout& layout : {LayoutOf(1, 1, 2), LayoutOf(2, 1, 2), LayoutOf(1, 1, 1)}) {
      const LayoutOutcome loaded = Train(RunWith(type), layout, 0, directory_);
      for (const auto& [name, tensor] : loaded.state) {
        if (absl::StrContains(name, "gradient_")) continue;
        EXPECT_TRUE(tensor == first.state.at(name)) << name;
      }
      const LayoutOutcome rest = Train(RunWith(type), layout, 1, directory_);
      EXPECT_LT(rest.losses[0], first.losses[0]);
    }
    ASSERT_TRUE(PosixFileSystem().RemoveTree(directory_).ok());
  }
}

// The largest part that is sent is all that is, where the threshold is low; a high one sends less,
// and in the first step nothing.
TEST_F(GradientCompressionTest, TheMetricTellsHowManyElementsAreAboveTheThreshold) {
  TrainerOptions run = RunWith(CompressionType::kThreshold);
  const Layout layout = LayoutOf(2, 1, 2);
  EXPECT_THAT(Train(RunWith(CompressionType::kTopK), layout, 1).sent_gradients, IsEmpty());
  run.data_parallel.compression.threshold = 0;
  for (const double sent : Train(run, layout, kSteps).sent_gradients) EXPECT_NEAR(sent, 0.1, 0.01);
  run.data_parallel.compression.threshold = 1e9f;
  EXPECT_THAT(Train(run, layout, kSteps).sent_gradients, Each(0));
  run.data_parallel.compression.threshold = 0.05f;
  run.data_parallel.compression.max_density = 0.25;
  for (const double sent : Train(run, layout, kSteps).sent_gradients) {
    EXPECT_GT(sent, 0);
    EXPECT_LT(sent, 0.2);
  }
}

// Without feedback of errors all updates but the first one are others.
TEST_F(GradientCompressionTest, ForgottenErrorsAreSeen) {
  const Layout layout = LayoutOf(1, 1, 2);
  for (const CompressionType type : kAll) {
    TrainerOptions run = RunWith(type);
    const LayoutOutcome whole = Train(run, layout, kSteps);
    run.data_parallel.compression.error_feedback = false;
    const LayoutOutcome without = Train(run, layout, kSteps);
    // The loss of a step is that of the weights before it.
    EXPECT_EQ(without.losses[1], whole.losses[1]) << static_cast<int>(type);
    EXPECT_NE(without.losses[3], whole.losses[3]) << static_cast<int>(type);
  }
}

// Samples, of which one in the second step makes its gradients NaN.
class BadSource : public CountingSource {
 public:
  absl::Status Get(int64_t index, Sample* sample) const override {
    const absl::Status status = CountingSource::Get(index, sample);
    if (index == kBad) sample->loss_mask[0] = std::numeric_limits<float>::quiet_NaN();
    return status;
  }

 private:
  static constexpr int64_t kBad = 11;  // batches have 8
};

// The step is skipped, and those behind it go on.
TEST_F(GradientCompressionTest, AStepThatIsNotFiniteLeavesNothingBehind) {
  for (const CompressionType type : kAll) {
    for (const Layout& layout : Layouts()) {
      SCOPED_TRACE(absl::StrCat(static_cast<int>(type), " on ", ToString(layout)));
      LayoutRun how;
      how.layout = layout;
      how.steps = kSteps;
      const LayoutOutcome got = TrainOnLayout(RunWith(type), how, BadSource());
      EXPECT_FALSE(std::isfinite(got.norms[1]));
      for (const int step : {0, 2, 3}) {
        EXPECT_TRUE(std::isfinite(got.norms[step])) << step;
        EXPECT_TRUE(std::isfinite(got.losses[step])) << step;
      }
    }
  }
}

// docs/gradient_compression.md has the formulas.
TEST_F(GradientCompressionTest, BytesAreThoseOfTheDocumentation) {
  constexpr double kRanks = 4, kShare = (kRanks - 1) / kRanks;
  const auto sent = [](CompressionType type, DataSharding sharding, Collective collective) {
    const LayoutOutcome outcome = Train(RunWith(type), LayoutOf(1, 1, 4, sharding), 1);
    return static_cast<double>(outcome.sent->Of("dp-cp", collective));
  };
  // All-reduces of floats, but for numbers of a few bytes.
  const double floats =
      sent(CompressionType::kNone, DataSharding::kNone, Collective::kAllReduce) / (2 * kShare);
  const double weights = floats / 4;
  const double codes = kShare * (1 + 4.0 / 256) * weights;
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kStates}) {
    EXPECT_NEAR(sent(CompressionType::kInt8, sharding, Collective::kAllToAll), codes, 0.05 * codes);
  }
  EXPECT_NEAR(sent(CompressionType::kInt8, DataSharding::kNone, Collective::kAllGather), codes,
              0.05 * codes);
  const double largest = (kRanks - 1) * 8 * 0.01 * weights;
  EXPECT_NEAR(sent(CompressionType::kTopK, DataSharding::kNone, Collective::kAllGather), largest,
              0.05 * largest);
  // As many as there are above the threshold, on the rank that has most of them.
  TrainerOptions run = RunWith(CompressionType::kThreshold);
  run.data_parallel.compression.threshold = 0;
  run.data_parallel.compression.max_density = 0.01;
  const LayoutOutcome above = Train(run, LayoutOf(1, 1, 4), 1);
  EXPECT_NEAR(static_cast<double>(above.sent->Of("dp-cp", Collective::kAllGather)), largest,
              0.05 * largest);
  run.data_parallel.compression.threshold = 1e9f;
  const LayoutOutcome none = Train(run, LayoutOf(1, 1, 4), 1);
  // The number of each bucket.
  const int64_t buckets = none.sent->CallsOf("dp-cp", Collective::kAllGather);
  EXPECT_GT(buckets, 1);
  EXPECT_EQ(none.sent->Of("dp-cp", Collective::kAllGather), (kRanks - 1) * 4 * buckets);
  EXPECT_LT(sent(CompressionType::kPowerSgd, DataSharding::kNone, Collective::kAllReduce),
            0.5 * 2 * kShare * floats);
  // Between instances, whose shards have parts of matrices.
  const auto between = [](CompressionType type) {
    const LayoutOutcome outcome =
        Train(RunWith(type), LayoutOf(1, 1, 4, DataSharding::kStates, /*instances=*/2), 1);
    return static_cast<double>(outcome.sent->Of("dp-cp-replicas", Collective::kAllReduce));
  };
  EXPECT_LT(between(CompressionType::kPowerSgd), 0.6 * between(CompressionType::kNone));
}

}  // namespace
}  // namespace megatron
