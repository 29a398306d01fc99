// Trains with gradients that are kept in bf16.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/models/model_harness.h"
#include "megatron/train/layouts/layout_harness.h"

namespace megatron {
namespace {

constexpr DataSharding kShardings[] = {DataSharding::kNone, DataSharding::kStates,
                                       DataSharding::kGradients, DataSharding::kWeights};

TrainerOptions With(DType gradients, const ModelOptions& model = SmallGpt2(),
                    OptimizerOptions::Kind kind = OptimizerOptions::kAdamW) {
  TrainerOptions options = TinyRun(model, kind);
  options.model.transformer.dtype = DType::kBFloat16;
  options.main_grads_dtype = gradients;
  return options;
}

TrainerOptions Rounded(const ModelOptions& model = SmallGpt2(),
                       OptimizerOptions::Kind kind = OptimizerOptions::kAdamW) {
  return With(DType::kBFloat16, model, kind);
}

LayoutRun On(int tensor, int pipeline, int data, int64_t micro_batch_size = 1) {
  LayoutRun run;
  run.layout.tensor = tensor;
  run.layout.sequence_parallel = tensor > 1;
  run.layout.pipeline = pipeline;
  run.layout.data = data;
  run.layout.micro_batch_size = micro_batch_size;
  run.steps = 3;
  run.evaluate = true;
  return run;
}

LayoutOutcome Train(const TrainerOptions& options, const LayoutRun& run) {
  return TrainOnLayout(options, run, CountingSource());
}

void ExpectSameBits(const LayoutOutcome& got, const LayoutOutcome& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.evaluation, want.evaluation);
  EXPECT_TRUE(got.state == want.state);
}

void ExpectNear(const LayoutOutcome& got, const LayoutOutcome& want, double bound) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], bound * want.losses[i]);
    EXPECT_NEAR(got.norms[i], want.norms[i], 10 * bound * want.norms[i]);
  }
}

int64_t Bytes(const LayoutOutcome& outcome, const std::string& kind) {
  const auto found = outcome.memory.find(kind);
  return found == outcome.memory.end() ? 0 : found->second;
}

// Samples of which every token counts: 16, so that a batch's mean divides by a power of two.
class EvenSource : public SampleSource {
 public:
  int64_t size() const override { return 1 << 10; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    *sample = Sample();
    for (int32_t i = 0; i < CountingSource::kLength; ++i) {
      sample->tokens.push_back(static_cast<int32_t>((7 * index + 3 * i) % 50));
      sample->labels.push_back(static_cast<int32_t>((7 * index + 3 * i + 3) % 50));
      sample->positions.push_back(i);
      sample->loss_mask.push_back(1.0f);
    }
    sample->document_starts = {0};
    return absl::OkStatus();
  }
};

// The gradients of a rank's first steps, as they are when the steps' updates begin.
using Gradients = std::vector<std::vector<float>>;
Gradients GradientsOf(const TrainerOptions& options, const LayoutRun& how) {
  Gradients gradients;
  LayoutRun run = how;
  run.on_piece = [&](int rank, Phase phase, ParameterBuffers* buffers) {
    if (rank != 0 || phase != Phase::kUpdate) return;
    gradients.emplace_back();
    for (const Bucket& bucket : buffers->buckets()) {
      const Tensor stored = buffers->Gradients(bucket, bucket.range);
      for (int64_t i = 0; i < stored.numel(); ++i) {
        gradients.back().push_back(stored.dtype() == DType::kBFloat16
                                       ? ToFloat(stored.data<BFloat16>()[i])
                                       : stored.data<float>()[i]);
      }
    }
  };
  TrainOnLayout(options, run, EvenSource());
  return gradients;
}

// A batch's gradient is that of its micro-batches, each of which is a batch of another run, whose
// weights stay as they are. A sample counts four times as much there.
TEST(MainGradsLayoutTest, SumsOverMicroBatchesAreRoundedOneByOne) {
  TrainerOptions single = With(DType::kFloat32);
  single.schedule.max_lr = 1e-60;  // 0 in fp32
  single.batch_size.global_batch_size = 2;
  LayoutRun how = On(1, 1, 1, /*micro_batch_size=*/2);
  how.steps = 4;
  const Gradients parts = GradientsOf(single, how);
  ASSERT_EQ(parts.size(), 4u);
  how.steps = 1;
  const Gradients rounded = GradientsOf(Rounded(), how),
                  exact = GradientsOf(With(DType::kFloat32), how);
  ASSERT_EQ(rounded.size(), 1u);
  std::vector<float> want(parts[0].size(), 0.0f);
  for (const std::vector<float>& part : parts) {
    for (size_t i = 0; i < want.size(); ++i) want[i] = ToFloat(ToBFloat16(want[i] + part[i] / 4));
  }
  EXPECT_EQ(rounded[0], want);
  // Rounding to 8 bits four times, and no more.
  double difference = 0, all = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(want[i] - exact[0][i], 2);
    all += std::pow(exact[0][i], 2);
  }
  EXPECT_GT(difference, 0);
  EXPECT_LT(std::sqrt(difference / all), 4.0 / 256);
}

TEST(MainGradsLayoutTest, EveryShardingAndOverlapTrainsTheSameBits) {
  for (const auto& [tensor, pipeline, data] :
       {std::tuple(1, 1, 2), std::tuple(2, 1, 2), std::tuple(1, 2, 2), std::tuple(1, 1, 8)}) {
    const bool one_micro_batch = data == 8;
    // Those that sum over micro-batches first, and over ranks first.
    LayoutOutcome first[2];
    const LayoutOutcome in_fp32 = Train(With(DType::kFloat32), On(tensor, pipeline, data));
    for (const DataSharding sharding : kShardings) {
      for (const bool overlap : {false, true}) {
        LayoutRun run = On(tensor, pipeline, data);
        run.layout.sharding = sharding;
        run.layout.overlap = overlap;
        SCOPED_TRACE(ToString(run.layout));
        const LayoutOutcome got = Train(Rounded(), run);
        LayoutOutcome& want = first[sharding >= DataSharding::kGradients && !one_micro_batch];
        if (want.losses.empty()) {
          want = got;
          EXPECT_NE(got.norms, in_fp32.norms);
          ExpectNear(got, in_fp32, 1e-2);
        } else {
          ExpectSameBits(got, want);
        }
      }
    }
  }
}

TEST(MainGradsLayoutTest, InstancesTrainTheSameBitsForEverySharding) {
  LayoutOutcome first[2];
  for (const DataSharding sharding :
       {DataSharding::kStates, DataSharding::kGradients, DataSharding::kWeights}) {
    for (const bool parts : {false, true}) {
      LayoutRun run = On(1, 1, 4);
      run.layout.sharding = sharding;
      run.layout.overlap = parts;
      run.layout.optimizer_instances = 2;
      run.layout.shards_states_over_instances = parts;
      SCOPED_TRACE(ToString(run.layout));
      const LayoutOutcome got = Train(Rounded(SmallLlama()), run);
      LayoutOutcome& want = first[sharding >= DataSharding::kGradients];
      if (want.losses.empty()) {
        want = got;
      } else {
        ExpectSameBits(got, want);
      }
    }
  }
}

TEST(MainGradsLayoutTest, EveryScheduleTrains) {
  const LayoutOutcome want = Train(Rounded(), On(1, 1, 1));
  for (const ScheduleKind schedule : {ScheduleKind::kGPipe, ScheduleKind::kOneForwardOneBackward,
                                      ScheduleKind::kZeroBubbleH1, ScheduleKind::kZeroBubbleV}) {
    LayoutRun run = On(1, 2, 1);
    run.layout.schedule = schedule;
    if (schedule == ScheduleKind::kZeroBubbleV) run.layout.chunks = 2;
    SCOPED_TRACE(ToString(run.layout));
    ExpectNear(Train(Rounded(), run), want, 1e-2);
  }
}

TEST(MainGradsLayoutTest, ExpertsAndOtherOptimizersTrain) {
  LayoutRun experts = On(1, 1, 4);
  experts.layout.expert = 2;
  LayoutOutcome want;
  for (const DataSharding sharding : kShardings) {
    experts.layout.sharding = sharding;
    experts.layout.micro_batch_size = 2;  // one micro-batch
    const LayoutOutcome got = Train(Rounded(SmallMixtral()), experts);
    if (want.losses.empty()) want = got;
    ExpectSameBits(got, want);
  }
  for (const auto kind : {OptimizerOptions::kSgd, OptimizerOptions::kLion}) {
    ExpectNear(Train(Rounded(SmallLlama(), kind), On(1, 1, 2)),
               Train(With(DType::kFloat32, SmallLlama(), kind), On(1, 1, 2)), 1e-2);
  }
}

// Weights and moments are those of any run: a checkpoint doesn't say in what gradients were kept.
TEST(MainGradsLayoutTest, ContinuesBitForBitAndFromOtherGradients) {
  LayoutRun whole = On(1, 1, 2), first = whole, rest = whole;
  whole.steps = 4;
  first.steps = rest.steps = 2;
  first.save = rest.load = absl::StrCat(testing::TempDir(), "/main_grads");
  const LayoutOutcome want = Train(Rounded(), whole);
  Train(Rounded(), first);
  EXPECT_TRUE(Train(Rounded(), rest).state == want.state);
  ExpectNear(Train(With(DType::kFloat32), rest), Train(Rounded(), rest), 1e-2);
}

// With a dynamic loss scale the first steps overflow, and are skipped by all ranks.
TEST(MainGradsLayoutTest, OverflowsSkipTheStep) {
  DynamicLossScaleOptions dynamic;
  dynamic.initial_scale = 1 << 20;
  dynamic.hysteresis = 1;
  const LossScaler scaler = *LossScaler::CreateDynamic(dynamic);
  LayoutRun run = On(1, 1, 2);
  run.steps = 20;
  run.scaler = &scaler;
  const auto train = [&](DType gradients) {
    TrainerOptions options = With(gradients);
    options.model.transformer.dtype = DType::kFloat16;
    return Train(options, run);
  };
  const LayoutOutcome in_fp32 = train(DType::kFloat32), rounded = train(DType::kBFloat16);
  ASSERT_EQ(rounded.norms.size(), in_fp32.norms.size());
  int skipped = 0;
  for (size_t i = 0; i < in_fp32.norms.size(); ++i) {
    EXPECT_EQ(std::isfinite(rounded.norms[i]), std::isfinite(in_fp32.norms[i])) << i;
    skipped += !std::isfinite(in_fp32.norms[i]);
  }
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 20);
}

TEST(MainGradsLayoutTest, NormsOfGradientsAreThoseOfTheDiagnostics) {
  for (const int data : {1, 2}) {
    TrainerOptions rounded = Rounded(), in_fp32 = With(DType::kFloat32);
    rounded.diagnostics_interval = in_fp32.diagnostics_interval = 1;
    const LayoutOutcome got = Train(rounded, On(1, 1, data)), want = Train(in_fp32, On(1, 1, data));
    EXPECT_EQ(got.losses, Train(Rounded(), On(1, 1, data)).losses);
    ASSERT_EQ(got.diagnostics.size(), want.diagnostics.size());
    const auto &a = got.diagnostics[0].layers, &b = want.diagnostics[0].layers;
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_NEAR(a[i].value, b[i].value, 0.05 * std::abs(b[i].value) + 1e-6) << b[i].name;
  }
}

// Half the bytes of gradients are kept and sent. The gradients of a block are in fp32 meanwhile.
TEST(MainGradsLayoutTest, KeepsAndSendsHalfTheBytes) {
  for (const DataSharding sharding : kShardings) {
    LayoutRun run = On(1, 1, 2);
    run.layout.sharding = sharding;
    SCOPED_TRACE(ToString(run.layout));
    const LayoutOutcome rounded = Train(Rounded(), run),
                        in_fp32 = Train(With(DType::kFloat32), run);
    EXPECT_EQ(2 * Bytes(rounded, "gradients"), Bytes(in_fp32, "gradients"));
    EXPECT_GT(Bytes(rounded, "gradients/whole"), 0);
    EXPECT_EQ(Bytes(rounded, "weights"), Bytes(in_fp32, "weights"));
    const Collective collective =
        sharding == DataSharding::kNone ? Collective::kAllReduce : Collective::kReduceScatter;
    const auto sent = [&](const LayoutOutcome& outcome) {
      return static_cast<double>(outcome.sent->Of("dp-cp", collective));
    };
    EXPECT_GT(sent(rounded), 0);
    // Losses, of which each step has one and the evaluation has one, take a few bytes.
    EXPECT_NEAR(sent(rounded), sent(in_fp32) / 2, 64 * 4);
  }
}

}  // namespace
}  // namespace megatron
