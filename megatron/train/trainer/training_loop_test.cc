#include "megatron/train/trainer/training_loop.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "megatron/base/fault_file_system.h"
#include "megatron/base/file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/base/wrapped_file_system.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/rank_grid.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/comm/watch/rank_progress.h"
#include "megatron/data/sample.h"
#include "megatron/models/model_harness.h"
#include "megatron/optim/compression/gradient_compressor.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/failure/exit_status.h"
#include "megatron/train/failure/failure.h"
#include "megatron/train/metrics/jsonl_writer.h"
#include "megatron/train/metrics/rank_console.h"
#include "megatron/train/trainer/run_options.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {
namespace {

constexpr int kLength = 16;

struct Readings {
  absl::Notification ahead;      // the sample that no step takes is being read
  absl::Notification run_over;   // the loop has run
  absl::Notification loop_gone;  // the loop has been destroyed
  std::atomic<bool> outlasts{false};
};

// A source of which a step takes the first sample. The reading of the other one lasts until the
// loop is gone, which it notes, or until the loop that has run has had time to be destroyed.
class WatchedSource : public SampleSource {
 public:
  explicit WatchedSource(Readings* readings) : readings_(*readings) {}
  int64_t size() const override { return 2; }
  absl::Status Get(int64_t index, Sample* sample) const override {
    sample->tokens.assign(kLength, 1);
    sample->labels.assign(kLength, 1);
    sample->loss_mask.assign(kLength, 1.0f);
    sample->positions.resize(kLength);
    for (int i = 0; i < kLength; ++i) sample->positions[i] = i;
    sample->document_starts.assign(1, 0);
    if (index == 0) return absl::OkStatus();
    readings_.ahead.Notify();
    readings_.run_over.WaitForNotification();
    if (readings_.loop_gone.WaitForNotificationWithTimeout(absl::Milliseconds(300)))
      readings_.outlasts = true;
    return absl::OkStatus();
  }

 private:
  Readings& readings_;
};

std::unique_ptr<Trainer> NewTrainer(const TrainerOptions& options, const Stream& stream) {
  const LossScaler scaler = LossScaler::MakeConstant(1);
  auto plan = Trainer::Create(options, scaler, {}, {}, Stream::Meta(), nullptr);
  CHECK_EQ(plan.status(), absl::OkStatus());
  auto trainer = Trainer::Create(options, scaler, {}, (*plan)->Measure(), stream, nullptr);
  CHECK_EQ(trainer.status(), absl::OkStatus());
  (*trainer)->InitializeWeights(1234);
  return *std::move(trainer);
}

class SameSamples : public SampleSource {
 public:
  int64_t size() const override { return 8; }
  absl::Status Get(int64_t, Sample* sample) const override {
    sample->tokens.assign(kLength, 1);
    sample->labels.assign(kLength, 1);
    sample->loss_mask.assign(kLength, 1.0f);
    sample->positions.resize(kLength);
    for (int i = 0; i < kLength; ++i) sample->positions[i] = i;
    sample->document_starts.assign(1, 0);
    return absl::OkStatus();
  }
};

void SetOptions(RunOptions* run) {
  TrainerOptions& options = run->trainer;
  options.model = SmallGpt2();
  options.schedule.max_lr = 1e-2;
  options.schedule.lr_decay_steps = 1000;
  options.packing.seq_length = run->data.seq_length = kLength;
  options.packing.layout.micro_batch_size = options.packing.layout.data_parallel_size = 1;
  options.packing.num_workers = 1;
  options.batch_size.global_batch_size = options.packing.max_micro_batches = 1;
}

// The trainer generates text afterwards, and the samples that the loop has made of a run's are
// gone.
TEST(TrainingLoopTest, NoThreadReadsSamplesWhenTheLoopIsGone) {
  TrainingRun run;
  SetOptions(&run.options);
  run.options.loop.train_iters = 1;
  Readings readings;
  run.data.train = std::make_unique<WatchedSource>(&readings);

  Trace trace;
  ThreadPool pool(1);
  MemoryLedger ledger;
  RankProgress progress;
  RankConsole console(/*prints=*/false, &progress);
  FirstFailure failure;
  const std::unique_ptr<Trainer> trainer =
      NewTrainer(run.options.trainer, trace.Follow(Stream::Cpu(&pool), "compute"));
  TrainingLoop::Rank rank;
  rank.profile.ledger = &ledger;
  rank.trace = &trace;
  rank.console = &console;
  rank.progress = &progress;
  rank.failure = &failure;
  {
    TrainingLoop loop(run, rank, PosixFileSystem(), trainer.get());
    const ExitCode code = loop.Run();
    readings.run_over.Notify();
    ASSERT_EQ(code, kExitDone) << failure.Get();
    readings.ahead.WaitForNotification();
  }
  readings.loop_gone.Notify();
  EXPECT_EQ(trainer->progress().iteration, 1);
  trainer->ReleaseSources();
  EXPECT_FALSE(readings.outlasts);
}

// The parts of a rank alone that prints.
struct LoopParts {
  Trace trace;
  ThreadPool pool{1};
  MemoryLedger ledger;
  RankProgress progress;
  RankConsole console{/*prints=*/true, &progress};
  FirstFailure failure;

  std::unique_ptr<Trainer> MakeTrainer(const TrainerOptions& options) {
    return NewTrainer(options, trace.Follow(Stream::Cpu(&pool), "compute"));
  }

  TrainingLoop::Rank Rank() {
    TrainingLoop::Rank rank;
    rank.profile.ledger = &ledger;
    rank.trace = &trace;
    rank.console = &console;
    rank.progress = &progress;
    rank.failure = &failure;
    return rank;
  }
};

// The disk is full until the ranks change.
TEST(TrainingLoopTest, LinesOfMetricsThatOneLoopCouldNotWriteTheNextOneWrites) {
  MemoryFileSystem disk;
  FaultFileSystem full(&disk);
  TrainingRun run;
  SetOptions(&run.options);
  run.options.loop.metrics_file = "run/metrics.jsonl";
  run.data.train = std::make_unique<SameSamples>();
  LoopParts parts;
  const std::unique_ptr<Trainer> trainer = parts.MakeTrainer(run.options.trainer);
  full.FailAt(0, ENOSPC, /*lasting=*/true);
  for (const int64_t iterations : {2, 3}) {
    run.options.loop.train_iters = iterations;
    std::string unwritten;
    {
      TrainingLoop loop(run, parts.Rank(), full, trainer.get());
      ASSERT_EQ(loop.Run(), kExitDone) << parts.failure.Get();
      unwritten = loop.unwritten_metrics();
    }
    EXPECT_EQ(std::count(unwritten.begin(), unwritten.end(), '\n'), iterations);
    run.going_on.emplace();
    run.going_on->unwritten_metrics = unwritten;
  }
  full.ClearFault();
  run.options.loop.train_iters = 4;
  TrainingLoop loop(run, parts.Rank(), full, trainer.get());
  ASSERT_EQ(loop.Run(), kExitDone) << parts.failure.Get();
  EXPECT_EQ(loop.unwritten_metrics(), "");
  const absl::StatusOr<std::string> text = ReadFileToString(disk, "run/metrics.jsonl");
  ASSERT_TRUE(text.ok()) << text.status();
  const auto history = ParseMetrics(*text);
  ASSERT_TRUE(history.ok()) << history.status();
  ASSERT_EQ(history->steps.size(), 4u);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(history->steps[i].iteration, i + 1);
}

// A run of two steps that saves each of them to /save.
void SaveEachStep(TrainingRun* run) {
  SetOptions(&run->options);
  run->options.checkpoint.save = "/save";
  run->options.checkpoint.save_interval = 1;
  run->options.loop.train_iters = 2;
  run->data.train = std::make_unique<SameSamples>();
}

TEST(TrainingLoopTest, ACheckpointThatOnlyIsNotNamedCountsAsSaved) {
  MemoryFileSystem disk;
  ASSERT_TRUE(disk.CreateDirs("/save/latest_checkpointed_iteration.txt").ok());
  TrainingRun run;
  SaveEachStep(&run);
  LoopParts parts;
  const std::unique_ptr<Trainer> trainer = parts.MakeTrainer(run.options.trainer);
  TrainingLoop loop(run, parts.Rank(), disk, trainer.get());
  ::testing::internal::CaptureStdout();
  const ExitCode code = loop.Run();
  const std::string said = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, kExitIo);
  EXPECT_NE(said.find("saved checkpoint of iteration 1 to /save"), std::string::npos) << said;
  EXPECT_NE(said.find("latest_checkpointed_iteration.txt' is no regular file"), std::string::npos)
      << said;
  EXPECT_EQ(said.find("was not saved"), std::string::npos) << said;
  const absl::Status failure = parts.failure.Get();
  EXPECT_NE(failure.message().find("iteration 2 itself is saved"), std::string::npos) << failure;
}

TEST(TrainingLoopTest, AFinishedRunDoesNotSaveAgainWhatItHasSaved) {
  for (const bool is_saved : {false, true}) {
    MemoryFileSystem disk, again;
    TrainingRun run;
    SaveEachStep(&run);
    run.options.checkpoint.load = "/base";
    LoopParts parts;
    const std::unique_ptr<Trainer> trainer = parts.MakeTrainer(run.options.trainer);
    {
      TrainingLoop loop(run, parts.Rank(), disk, trainer.get());
      ASSERT_EQ(loop.Run(), kExitDone) << parts.failure.Get();
    }
    run.starts_from_saved = is_saved;
    TrainingLoop loop(run, parts.Rank(), again, trainer.get());
    ASSERT_EQ(loop.Run(), kExitDone) << parts.failure.Get();
    EXPECT_EQ(again.Stat("/save/iter_0000002").ok(), !is_saved);
  }
}

TEST(TrainingLoopTest, NothingIsSavedOverTheCheckpointsOfAnotherRun) {
  for (const bool in_the_end : {false, true}) {
    MemoryFileSystem disk;
    TrainingRun run;
    SaveEachStep(&run);
    int saves = 0;
    run.keep_save_lock = [&](bool is_first) -> absl::StatusOr<bool> {
      EXPECT_TRUE(is_first);
      if (saves++ < in_the_end) return false;
      return WithExitCode(absl::FailedPreconditionError("another process is saving to /save"),
                          kExitConfig);
    };
    LoopParts parts;
    const std::unique_ptr<Trainer> trainer = parts.MakeTrainer(run.options.trainer);
    TrainingLoop loop(run, parts.Rank(), disk, trainer.get());
    EXPECT_EQ(loop.Run(), kExitConfig);
    const absl::Status failure = parts.failure.Get();
    EXPECT_NE(failure.message().find(in_the_end ? "iteration 2 is not saved: .lock in /save"
                                                : "iteration 1 is not saved: .lock in /save"),
              std::string::npos)
        << failure;
    EXPECT_EQ(disk.Stat("/save/iter_0000001").ok(), in_the_end);
    EXPECT_FALSE(disk.Stat("/save/iter_0000002").ok());
  }
}

TEST(TrainingLoopTest, ALockThatIsTakenAgainOrCannotBeOnlyWarns) {
  MemoryFileSystem disk;
  TrainingRun run;
  SaveEachStep(&run);
  int saves = 0;
  run.keep_save_lock = [&](bool) -> absl::StatusOr<bool> {
    if (saves++ == 0) return true;
    return absl::ResourceExhaustedError("No space left on device");
  };
  LoopParts parts;
  const std::unique_ptr<Trainer> trainer = parts.MakeTrainer(run.options.trainer);
  TrainingLoop loop(run, parts.Rank(), disk, trainer.get());
  ::testing::internal::CaptureStdout();
  const ExitCode code = loop.Run();
  const std::string said = ::testing::internal::GetCapturedStdout();
  ASSERT_EQ(code, kExitDone) << parts.failure.Get();
  EXPECT_NE(said.find("the directory is locked again"), std::string::npos) << said;
  EXPECT_NE(said.find("can't be locked: No space left on device"), std::string::npos) << said;
  EXPECT_TRUE(disk.Stat("/save/iter_0000001").ok());
  EXPECT_TRUE(disk.Stat("/save/iter_0000002").ok());
}

// A disk that takes its time to write.
class SlowFileSystem : public WrappedFileSystem {
 public:
  using WrappedFileSystem::WrappedFileSystem;

 private:
  absl::Status Begin(const Operation& operation) override {
    if (operation.writes) absl::SleepFor(absl::Milliseconds(20));
    return absl::OkStatus();
  }
};

// Trains `run` as one of two data-parallel ranks, and saves to `disk`.
absl::Status TrainInTwo(const ProcessGroup& world, TrainingRun* run, FileSystem& disk) {
  ParallelSizes sizes;
  sizes.data = world.size();
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(sizes, world.size()));
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(sizes, world.size()));
  TrainerOptions& options = run->options.trainer;
  options.packing.layout = {/*micro_batch_size=*/1, world.size(), world.rank()};
  options.batch_size.granularity = options.batch_size.global_batch_size = world.size();
  LoopParts parts;
  const LossScaler scaler = LossScaler::MakeConstant(1);
  MEGATRON_ASSIGN_OR_RETURN(
      const std::unique_ptr<Trainer> plan,
      Trainer::Create(options, scaler, GroupsForPlanning(dense, expert, world.rank()), {},
                      Stream::Meta(), nullptr));
  MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                            MakeGroups(dense, expert, world.communicator()));
  MEGATRON_ASSIGN_OR_RETURN(
      const std::unique_ptr<Trainer> trainer,
      Trainer::Create(options, scaler, groups, plan->Measure(),
                      parts.trace.Follow(Stream::Cpu(&parts.pool), "compute"), nullptr));
  trainer->InitializeWeights(1234);
  TrainingLoop::Rank rank = parts.Rank();
  MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> saving,
                            world.communicator()->Split({{0, 1}}, "checkpoint"));
  rank.saving = ProcessGroup(std::move(saving));
  TrainingLoop loop(*run, rank, disk, trainer.get());
  EXPECT_EQ(loop.Run(), kExitDone) << parts.failure.Get();
  return absl::OkStatus();
}

TEST(TrainingLoopTest, ASlowSaveKeepsTheErrorsOfCompressedSumsAsTheyWere) {
  std::string shards[2];
  for (const bool async : {false, true}) {
    MemoryFileSystem memory;
    SlowFileSystem disk(&memory);
    EXPECT_EQ(RunRanks(2,
                       [&](int, const ProcessGroup& world) {
                         TrainingRun run;
                         SaveEachStep(&run);
                         run.options.checkpoint.async_save = async;
                         run.options.trainer.data_parallel.compression.type =
                             CompressionType::kTopK;
                         return TrainInTwo(world, &run, disk);
                       }),
              absl::OkStatus());
    const absl::StatusOr<std::string> shard =
        ReadFileToString(memory, "/save/iter_0000001/shard_00001_of_00002.bin");
    ASSERT_TRUE(shard.ok()) << shard.status();
    shards[async] = *shard;
  }
  EXPECT_TRUE(shards[0] == shards[1]);
}

}  // namespace
}  // namespace megatron
