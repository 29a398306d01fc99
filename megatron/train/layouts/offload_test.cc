// Trains on the emulated device, whose copies reach the host only when it has waited for them, with
// different parts of the optimizer's states in host memory.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

class OffloadTest : public testing::Test {
 protected:
  LayoutOutcome Train(TrainerOptions options, double fraction, const LayoutRun& how) {
    LayoutRun run = how;
    run.device = device_;
    if (run.steps == 0) run.steps = 3;
    options.host_fraction = fraction;
    return TrainOnLayout(options, run, source_);
  }

  // Trains with the part in files, of several extents.
  LayoutOutcome TrainInFiles(TrainerOptions options, double fraction, const LayoutRun& how) {
    options.state_directory = testing::TempDir();
    options.state_extent_elements = 1000;
    return Train(options, fraction, how);
  }

  // Expects that the bits of losses, norms, weights and states do not depend on the part.
  void ExpectSameBits(const TrainerOptions& options, const LayoutRun& how = {}) {
    const LayoutOutcome without = Train(options, 0, how);
    EXPECT_EQ(HostBytes(without), 0);
    int64_t less = 0;
    for (const double fraction : {0.5, 1.0}) {
      SCOPED_TRACE(absl::StrCat("fraction ", fraction));
      ExpectSame(TrainInFiles(options, fraction, how), without);
      if (device_ == DeviceType::kCpu) continue;
      const LayoutOutcome with = Train(options, fraction, how);
      ExpectSame(with, without);
      EXPECT_GT(HostBytes(with), less);
      less = HostBytes(with);
    }
  }

  static void ExpectSame(const LayoutOutcome& with, const LayoutOutcome& without) {
    EXPECT_EQ(with.losses, without.losses);
    EXPECT_EQ(with.norms, without.norms);
    EXPECT_EQ(with.evaluation, without.evaluation);
    EXPECT_EQ(with.state, without.state);
  }

  // Norms of gradients, weights and updates of all steps, by layer.
  static std::vector<std::pair<std::string, double>> LayerValues(const LayoutOutcome& outcome) {
    std::vector<std::pair<std::string, double>> values;
    for (const DiagnosticValues& step : outcome.diagnostics) {
      for (const LayerValue& layer : step.layers) values.emplace_back(layer.name, layer.value);
    }
    return values;
  }

  static int64_t HostBytes(const LayoutOutcome& outcome) {
    int64_t bytes = 0;
    for (const auto& [name, held] : outcome.memory) bytes += name.rfind("host/", 0) == 0 ? held : 0;
    return bytes;
  }

  static TrainerOptions With(DType dtype, OptimizerOptions::Kind kind = OptimizerOptions::kAdamW) {
    TrainerOptions options = TinyRun(SmallGpt2(), kind);
    options.model.transformer.dtype = dtype;
    options.clip_grad = 0.1;
    return options;
  }

  CountingSource source_;
  DeviceType device_ = DeviceType::kCuda;
};

// On the CPU only files hold a part.
class StatesInFilesOnTheCpuTest : public OffloadTest {
 protected:
  StatesInFilesOnTheCpuTest() { device_ = DeviceType::kCpu; }
};

TEST_F(StatesInFilesOnTheCpuTest, EveryOptimizerAndDtypeHasTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const auto kind :
         {OptimizerOptions::kAdamW, OptimizerOptions::kSgd, OptimizerOptions::kLion}) {
      SCOPED_TRACE(absl::StrCat(SizeOf(dtype), " bytes, optimizer ", kind));
      ExpectSameBits(With(dtype, kind));
    }
  }
}

TEST_F(StatesInFilesOnTheCpuTest, RemaindersHaveTheSameBits) {
  TrainerOptions options = With(DType::kBFloat16);
  options.optimizer.store_param_remainders = true;
  ExpectSameBits(options);
  options.diagnostics_interval = 1;
  const LayoutOutcome without = Train(options, 0, {});
  options.state_directory = testing::TempDir();
  EXPECT_EQ(LayerValues(Train(options, 1, {})), LayerValues(without));
}

TEST_F(StatesInFilesOnTheCpuTest, EveryShardingHasTheSameBits) {
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kStates,
                                      DataSharding::kGradients, DataSharding::kWeights}) {
    LayoutRun how;
    how.layout.data = 2;
    how.layout.sharding = sharding;
    how.layout.overlap = sharding == DataSharding::kWeights;
    how.evaluate = true;
    SCOPED_TRACE(ToString(how.layout));
    ExpectSameBits(With(DType::kBFloat16), how);
  }
}

TEST_F(StatesInFilesOnTheCpuTest, NormsOfWeightsAndUpdatesHaveTheSameBits) {
  TrainerOptions options = With(DType::kBFloat16);
  options.diagnostics_interval = 1;
  const LayoutOutcome without = Train(options, 0, {});
  ASSERT_FALSE(LayerValues(without).empty());
  // Sums of squares have the same portions while extents do not cut parameters.
  options.state_directory = testing::TempDir();
  const LayoutOutcome with = Train(options, 1, {});
  EXPECT_EQ(with.state, without.state);
  EXPECT_EQ(LayerValues(with), LayerValues(without));
}

TEST_F(StatesInFilesOnTheCpuTest, ACheckpointContinuesWithAnyOtherPartAndOnOtherLayouts) {
  const TrainerOptions options = With(DType::kBFloat16);
  LayoutRun first;
  first.steps = 2;
  first.save = absl::StrCat(testing::TempDir(), "/states_in_files");
  TrainInFiles(options, 1, first);
  for (const int ranks : {1, 2}) {
    LayoutRun second;
    second.steps = 2;
    second.load = first.save;
    second.layout.data = ranks;
    if (ranks > 1) second.layout.sharding = DataSharding::kWeights;
    const LayoutOutcome without = Train(options, 0, second);
    for (const double loaded : {0.5, 1.0}) {
      SCOPED_TRACE(absl::StrCat("loaded with ", loaded, " on ", ranks));
      ExpectSame(TrainInFiles(options, loaded, second), without);
    }
  }
  LayoutRun whole;
  whole.steps = 4;
  LayoutRun rest = first;
  rest.load = first.save;
  rest.save.clear();
  EXPECT_EQ(TrainInFiles(options, 1, rest).state, Train(options, 0, whole).state);
}

TEST_F(OffloadTest, RemaindersHaveTheSameBits) {
  TrainerOptions options = With(DType::kBFloat16);
  options.optimizer.store_param_remainders = true;
  for (const DType moments : {DType::kFloat32, DType::kBFloat16, DType::kUInt8}) {
    options.optimizer.exp_avg_dtype = options.optimizer.exp_avg_sq_dtype = moments;
    ExpectSameBits(options);
  }
  LayoutRun shared_out;
  shared_out.layout.data = 2;
  shared_out.layout.sharding = DataSharding::kWeights;
  shared_out.layout.overlap = true;
  ExpectSameBits(options, shared_out);
  options.diagnostics_interval = 1;
  EXPECT_EQ(LayerValues(Train(options, 0.5, {})), LayerValues(Train(options, 0, {})));
}

TEST_F(OffloadTest, EveryOptimizerAndDtypeHasTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const auto kind :
         {OptimizerOptions::kAdamW, OptimizerOptions::kSgd, OptimizerOptions::kLion}) {
      SCOPED_TRACE(absl::StrCat(SizeOf(dtype), " bytes, optimizer ", kind));
      ExpectSameBits(With(dtype, kind));
    }
  }
}

TEST_F(OffloadTest, MomentsInFewerBytesHaveTheSameBits) {
  for (const DType moments : {DType::kBFloat16, DType::kUInt8}) {
    TrainerOptions options = With(DType::kBFloat16);
    options.optimizer.exp_avg_dtype = options.optimizer.exp_avg_sq_dtype = moments;
    LayoutRun how;
    ExpectSameBits(options, how);
    how.layout.data = 2;
    how.layout.sharding = DataSharding::kWeights;
    ExpectSameBits(options, how);
  }
}

TEST_F(OffloadTest, EveryShardingHasTheSameBits) {
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kStates,
                                      DataSharding::kGradients, DataSharding::kWeights}) {
    for (const bool overlap : {false, true}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        LayoutRun how;
        how.layout.data = 2;
        how.layout.sharding = sharding;
        how.layout.overlap = overlap;
        how.evaluate = true;  // waits for weights that are gathered beside the next step
        SCOPED_TRACE(absl::StrCat(ToString(how.layout), ", ", SizeOf(dtype), " bytes"));
        ExpectSameBits(With(dtype), how);
      }
    }
  }
}

TEST_F(OffloadTest, TensorAndPipelineRanksHaveTheSameBits) {
  LayoutRun how;
  how.layout.tensor = how.layout.pipeline = 2;
  ExpectSameBits(With(DType::kBFloat16), how);
}

TEST_F(OffloadTest, ExpertsOnRanksOfTheirOwnHaveTheSameBits) {
  TrainerOptions options = TinyRun(SmallMixtral(), OptimizerOptions::kAdamW);
  options.model.transformer.dtype = DType::kBFloat16;
  LayoutRun how;
  how.layout.data = how.layout.expert = 2;
  how.layout.sharding = DataSharding::kStates;
  ExpectSameBits(options, how);
}

TEST_F(OffloadTest, NormsOfWeightsAndUpdatesHaveTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TrainerOptions options = With(dtype);
    options.diagnostics_interval = 1;
    const LayoutOutcome without = Train(options, 0, {});
    ASSERT_FALSE(LayerValues(without).empty());
    for (const double fraction : {0.5, 1.0}) {
      const LayoutOutcome with = Train(options, fraction, {});
      EXPECT_EQ(with.state, without.state);
      EXPECT_EQ(LayerValues(with), LayerValues(without)) << fraction;
    }
  }
}

TEST_F(OffloadTest, ACheckpointOfAnyPartContinuesWithAnyOther) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const TrainerOptions options = With(dtype);
    LayoutRun whole;
    whole.steps = 4;
    const LayoutOutcome expected = Train(options, 0, whole);
    for (const bool in_files : {false, true}) {
      const auto train = [&](double fraction, const LayoutRun& how) {
        return in_files ? TrainInFiles(options, fraction, how) : Train(options, fraction, how);
      };
      for (const double saved : {0.0, 0.5, 1.0}) {
        LayoutRun first;
        first.steps = 2;
        first.save =
            absl::StrCat(testing::TempDir(), "/offload_", SizeOf(dtype), "_", in_files, "_", saved);
        train(saved, first);
        for (const double loaded : {0.0, 0.5, 1.0}) {
          SCOPED_TRACE(absl::StrCat(in_files ? "in files, " : "", "saved with ", saved,
                                    " and loaded with ", loaded));
          LayoutRun second;
          second.steps = 2;
          second.load = first.save;
          const LayoutOutcome rest = train(loaded, second);
          EXPECT_EQ(rest.state, expected.state);
          EXPECT_EQ(rest.losses,
                    std::vector<double>(expected.losses.begin() + 2, expected.losses.end()));
        }
      }
    }
  }
}

}  // namespace
}  // namespace megatron
