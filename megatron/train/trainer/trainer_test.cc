#include "megatron/train/trainer/trainer.h"

#include <cerrno>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "megatron/base/scripted_engine.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/models/model_harness.h"
#include "megatron/models/model_stage.h"
#include "megatron/ops/allocation_counter.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

constexpr int kLength = 16;

// A text that can be learned: each sample counts up from its number.
class CountingSource : public SampleSource {
 public:
  int64_t size() const override { return 1 << 20; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    sample->tokens.resize(kLength);
    sample->labels.resize(kLength);
    sample->positions.resize(kLength);
    sample->loss_mask.resize(kLength);
    sample->document_starts.assign(1, 0);
    for (int i = 0; i < kLength; ++i) {
      sample->tokens[i] = static_cast<int32_t>((7 * index + 3 * i) % 50);
      sample->labels[i] = static_cast<int32_t>((7 * index + 3 * i + 3) % 50);
      sample->positions[i] = i;
      sample->loss_mask[i] = (index + i) % 7 == 0 ? 0.0f : 1.0f;
    }
    return absl::OkStatus();
  }
};

// The source must outlive all trainers, since they read ahead in it.
const CountingSource& Source() {
  static const CountingSource* const source = new CountingSource;
  return *source;
}

TrainerOptions Options(const ModelOptions& model) {
  TrainerOptions options;
  options.model = model;
  options.schedule.max_lr = 1e-2;
  options.schedule.lr_decay_steps = 1000;
  options.schedule.lr_decay_style = LrDecayStyle::kCosine;
  options.schedule.start_weight_decay = options.schedule.end_weight_decay = 0.1;
  options.schedule.weight_decay_steps = 1000;
  options.batch_size.global_batch_size = 8;
  options.packing.seq_length = kLength;
  options.clip_grad = 1;
  return options;
}

void SetMicroBatch(int64_t size, int64_t data_parallel_size, TrainerOptions* options) {
  options->packing.layout.micro_batch_size = size;
  options->packing.layout.data_parallel_size = data_parallel_size;
  options->batch_size.granularity = size * data_parallel_size;
  options->packing.max_micro_batches =
      options->batch_size.global_batch_size / options->batch_size.granularity;
}

struct Curve {
  std::vector<double> losses, norms;
  double evaluation = 0;
};

std::unique_ptr<Trainer> Make(const TrainerOptions& options, const LossScaler& scaler,
                              const ProcessGroups& groups, const ProcessGroups& planning,
                              const Stream& stream, MemoryLedger* ledger) {
  MemoryLedger unused;
  auto plan = Trainer::Create(options, scaler, planning, {}, Stream::Meta(), &unused);
  CHECK_EQ(plan.status(), absl::OkStatus());
  auto trainer = Trainer::Create(options, scaler, groups, (*plan)->Measure(), stream, ledger);
  CHECK_EQ(trainer.status(), absl::OkStatus());
  (*trainer)->InitializeWeights(1234);
  return *std::move(trainer);
}

Curve Train(Trainer* trainer, int steps) {
  Curve curve;
  for (int i = 0; i < steps; ++i) {
    const auto report = trainer->Step(Source());
    CHECK_EQ(report.status(), absl::OkStatus());
    curve.losses.push_back(report->loss);
    curve.norms.push_back(report->update.grad_norm);
  }
  const auto evaluated = trainer->Evaluate(Source(), 2);
  CHECK_EQ(evaluated.status(), absl::OkStatus());
  curve.evaluation = evaluated->loss;
  return curve;
}

Curve TrainAlone(const TrainerOptions& options, int steps) {
  ThreadPool pool(1);
  MemoryLedger ledger;
  auto trainer = Make(options, LossScaler::MakeConstant(1), ProcessGroups(), ProcessGroups(),
                      Stream::Cpu(&pool), &ledger);
  return Train(trainer.get(), steps);
}

void ExpectEqualCurves(const Curve& got, const Curve& want, double tolerance) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << "step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], 20 * tolerance * want.norms[i]) << "step " << i;
  }
  EXPECT_NEAR(got.evaluation, want.evaluation, tolerance * want.evaluation);
}

ModelOptions WithDropout(ModelOptions options) {
  options.transformer.init_std = options.transformer.output_init_std = options.embedding_init_std =
      0.05f;
  options.transformer.hidden_dropout = options.transformer.attention_dropout = 0.1f;
  return options;
}

TEST(TrainerTest, LearnsToCount) {
  for (const ModelOptions& model : {SmallGpt2(), SmallLlama()}) {
    TrainerOptions options = Options(model);
    SetMicroBatch(8, 1, &options);
    const Curve curve = TrainAlone(options, 80);
    EXPECT_GT(curve.losses.front(), 3.5);
    EXPECT_LT(curve.evaluation, 0.5);
  }
}

TEST(TrainerTest, LionLearnsToCount) {
  TrainerOptions options = Options(SmallLlama());
  options.optimizer.kind = OptimizerOptions::kLion;
  options.schedule.max_lr = 2e-3;
  SetMicroBatch(8, 1, &options);
  const Curve curve = TrainAlone(options, 80);
  EXPECT_GT(curve.losses.front(), 3.5);
  EXPECT_LT(curve.evaluation, 0.5);
}

TEST(TrainerTest, MuonLearnsToCount) {
  TrainerOptions options = Options(SmallLlama());
  options.optimizer.kind = OptimizerOptions::kMuon;
  options.optimizer.muon.extra_scale_factor = 0.2;
  SetMicroBatch(8, 1, &options);
  const Curve curve = TrainAlone(options, 80);
  EXPECT_GT(curve.losses.front(), 3.5);
  EXPECT_LT(curve.evaluation, 0.5);
}

TEST(TrainerTest, LambLearnsToCount) {
  TrainerOptions options = Options(SmallLlama());
  options.optimizer.kind = OptimizerOptions::kLamb;
  options.schedule.max_lr = 5e-2;
  SetMicroBatch(8, 1, &options);
  const Curve curve = TrainAlone(options, 80);
  EXPECT_GT(curve.losses.front(), 3.5);
  EXPECT_LT(curve.evaluation, 0.5);
}

TEST(TrainerTest, TheMicroBatchSizeDoesNotMatter) {
  TrainerOptions options = Options(WithDropout(SmallGpt2()));
  SetMicroBatch(8, 1, &options);
  const Curve whole = TrainAlone(options, 6);
  for (int64_t size : {1, 2, 4}) {
    SetMicroBatch(size, 1, &options);
    ExpectEqualCurves(TrainAlone(options, 6), whole, 1e-5);
  }
}

// Runs the same training on any layout: ranks are threads, masks and initial weights are the same.
TEST(TrainerTest, TheLayoutDoesNotMatter) {
  struct Layout {
    int tensor, pipeline, data;
  };
  for (const ModelOptions& model : {WithDropout(SmallGpt2()), WithDropout(SmallLlama())}) {
    TrainerOptions options = Options(model);
    SetMicroBatch(2, 1, &options);
    const Curve alone = TrainAlone(options, 6);
    for (const Layout& layout :
         {Layout{2, 1, 1}, Layout{1, 2, 1}, Layout{1, 1, 2}, Layout{2, 2, 2}}) {
      SCOPED_TRACE(testing::Message() << "tensor " << layout.tensor << " pipeline "
                                      << layout.pipeline << " data " << layout.data);
      ParallelSizes sizes;
      sizes.tensor = layout.tensor;
      sizes.pipeline = layout.pipeline;
      sizes.data = layout.data;
      const int ranks = layout.tensor * layout.pipeline * layout.data;
      const auto dense = RankGrid::Create(sizes, ranks),
                 expert = RankGrid::CreateExpert(sizes, ranks);
      ASSERT_TRUE(dense.ok() && expert.ok());
      const absl::Status status =
          RunRanks(ranks, [&](int rank, const ProcessGroup& world) -> absl::Status {
            const auto groups = MakeGroups(*dense, *expert, world.communicator());
            if (!groups.ok()) return groups.status();
            TrainerOptions mine = options;
            SetMicroBatch(1, layout.data, &mine);
            mine.placement.stages = layout.pipeline;
            mine.placement.stage = dense->Coordinate(rank, Axis::kPipeline);
            mine.packing.layout.data_parallel_rank = dense->Coordinate(rank, Axis::kData);
            ThreadPool pool(1);
            MemoryLedger ledger;
            auto trainer =
                Make(mine, LossScaler::MakeConstant(1), *groups,
                     GroupsForPlanning(*dense, *expert, rank), Stream::Cpu(&pool), &ledger);
            ExpectEqualCurves(Train(trainer.get(), 6), alone, 2e-5);
            return world.status();
          });
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

TEST(TrainerTest, AFileOfStatesThatFailsEndsTheStepWithTheCodeOfFiles) {
  TrainerOptions options = Options(SmallGpt2());
  SetMicroBatch(4, 1, &options);
  options.state_directory = testing::TempDir();
  options.host_fraction = 1;
  ThreadPool pool(1);
  const auto trainer = Make(options, LossScaler::MakeConstant(1), ProcessGroups(), ProcessGroups(),
                            Stream::Cpu(&pool), nullptr);
  Train(trainer.get(), 1);
  StateFile* const file = trainer->buffers().state_file();
  ASSERT_NE(file, nullptr);
  const std::string path = absl::StrCat(testing::TempDir(), "failing_states");
  file->Open(ScriptedBlockFile(
      path, file->bytes(), BlockFile::kAlignment,
      [](const Block& block) -> int64_t { return block.offset == 8192 ? -EIO : block.bytes; }));
  const int64_t iteration = trainer->progress().iteration;
  const absl::Status status = trainer->Step(Source()).status();
  EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("read '", path, "' at 8192")))
      << status;
  EXPECT_EQ(ExitCodeOf(status), kExitIo);
  EXPECT_EQ(trainer->progress().iteration, iteration);
  EXPECT_EQ(ExitCodeOf(trainer->Step(Source()).status()), kExitIo);
}

TEST(TrainerTest, SteadyStepsAllocateNothingAndMemoryIsWhatWasPlanned) {
  for (const ModelOptions& model : {WithDropout(SmallGpt2()), WithDropout(SmallLlama())}) {
    TrainerOptions options = Options(model);
    SetMicroBatch(4, 1, &options);
    MemoryLedger planned;
    auto plan = Trainer::Create(options, LossScaler::MakeConstant(1), ProcessGroups(), {},
                                Stream::Meta(), &planned);
    ASSERT_TRUE(plan.ok());
    const StageMemorySizes sizes = (*plan)->Measure();
    ThreadPool pool(2);
    MemoryLedger ledger;
    auto trainer = Make(options, LossScaler::MakeConstant(1), ProcessGroups(), ProcessGroups(),
                        Stream::Cpu(&pool), &ledger);
    const int64_t arenas = sizes.total();
    EXPECT_EQ(ledger.peak_bytes(), planned.peak_bytes() + arenas);
    Train(trainer.get(), 2);
    EXPECT_EQ(ledger.peak_bytes(), planned.peak_bytes() + arenas);
    const int64_t before = ops::AllocationCount();
    const auto report = trainer->Step(Source());
    EXPECT_EQ(ops::AllocationCount(), before);
    EXPECT_TRUE(report.ok());
  }
}

TEST(TrainerTest, Fp16StartsByFindingItsLossScale) {
  TrainerOptions options = Options(SmallGpt2());
  options.model.transformer.dtype = DType::kFloat16;
  SetMicroBatch(8, 1, &options);
  auto scaler = LossScaler::CreateDynamic({});
  ASSERT_TRUE(scaler.ok());
  ThreadPool pool(1);
  MemoryLedger ledger;
  auto trainer =
      Make(options, *scaler, ProcessGroups(), ProcessGroups(), Stream::Cpu(&pool), &ledger);
  int skipped = 0;
  double loss = 0;
  for (int i = 0; i < 80; ++i) {
    const auto report = trainer->Step(Source());
    ASSERT_TRUE(report.ok());
    if (!report->update.applied) ++skipped;
    loss = report->loss;
  }
  EXPECT_GT(skipped, 5);
  EXPECT_LT(skipped, 40);
  EXPECT_EQ(trainer->optimizer().applied_steps(), 80 - skipped);
  EXPECT_EQ(trainer->scheduler().state().num_steps, (80 - skipped) * 8);
  EXPECT_EQ(trainer->progress().consumed_train_samples, 80 * 8);
  EXPECT_LT(trainer->scaler().scale(), 4294967296.0f);
  EXPECT_LT(loss, 1.5);
}

TEST(TrainerTest, ANanNeverReachesTheWeights) {
  TrainerOptions options = Options(SmallGpt2());
  SetMicroBatch(8, 1, &options);
  ThreadPool pool(1);
  MemoryLedger ledger;
  auto trainer = Make(options, LossScaler::MakeConstant(1), ProcessGroups(), ProcessGroups(),
                      Stream::Cpu(&pool), &ledger);
  const Tensor weights = trainer->buffers().weights();
  const Tensor last = trainer->stage().parameters().back()->data;
  const float good = last.data<float>()[0];
  last.data<float>()[0] = std::nanf("");
  std::vector<float> before(weights.data<float>(), weights.data<float>() + weights.numel());
  const auto report = trainer->Step(Source());
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->update.finite);
  EXPECT_FALSE(report->update.applied);
  for (int64_t i = 0; i < weights.numel(); ++i) {
    if (!std::isnan(before[i])) {
      ASSERT_EQ(weights.data<float>()[i], before[i]);
    }
  }
  last.data<float>()[0] = good;
  EXPECT_TRUE(trainer->Step(Source())->update.applied);
}

}  // namespace
}  // namespace megatron
