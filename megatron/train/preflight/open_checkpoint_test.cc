#include "megatron/train/preflight/open_checkpoint.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "megatron/train/config/config_parser.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

void Ignore(const std::string&) {}

class OpenCheckpointTest : public ::testing::Test {
 protected:
  OpenCheckpointTest() {
    EXPECT_THAT(fs_.RemoveTree(directory_), IsOk());
    EXPECT_THAT(fs_.CreateDirs(JoinPath(directory_, "empty")), IsOk());
    const std::string damaged = JoinPath(directory_, "damaged");
    EXPECT_THAT(fs_.CreateDirs(damaged), IsOk());
    EXPECT_THAT(
        WriteFileAtomically(fs_, JoinPath(damaged, "latest_checkpointed_iteration.txt"), "12\n"),
        IsOk());
  }

  std::string In(const std::string& name) const { return JoinPath(directory_, name); }

  void SaveTo(const std::string& directory) {
    CheckpointState state;
    state.run_id = "0123456789abcdef";
    state.iteration = 7;
    SaveOptions save;
    save.directory = directory;
    EXPECT_THAT(SaveCheckpoint(fs_, save, state), IsOk());
  }

  FileSystem& fs_ = PosixFileSystem();
  const std::string directory_ = JoinPath(::testing::TempDir(), "open_checkpoint");
};

TEST_F(OpenCheckpointTest, ARunThatSavesWhereItLoadsFromBeginsThere) {
  CheckpointOptions options;
  options.save = options.load = In("empty");
  const auto start = OpenCheckpoint(fs_, options, Ignore);
  ASSERT_THAT(start, IsOk());
  EXPECT_EQ(start->checkpoint, nullptr);
  EXPECT_THAT(OpenCheckpoint(fs_, {}, Ignore), IsOk());
}

TEST_F(OpenCheckpointTest, ACheckpointThatIsNotThereIsAMistakeOfTheConfiguration) {
  CheckpointOptions options;
  options.load = In("empty");
  const absl::Status status = OpenCheckpoint(fs_, options, Ignore).status();
  EXPECT_EQ(ExitCodeOf(status), kExitConfig);
  EXPECT_THAT(std::string(status.message()), HasSubstr("unset it to start from the beginning"));
}

TEST_F(OpenCheckpointTest, ADamagedCheckpointIsNotPassedOver) {
  CheckpointOptions options;
  options.load = options.save = In("damaged");
  const absl::Status own = OpenCheckpoint(fs_, options, Ignore).status();
  EXPECT_EQ(ExitCodeOf(own), kExitCorruptCheckpoint);
  EXPECT_THAT(std::string(own.message()),
              HasSubstr("to begin anew move '" + In("damaged") + "' away"));
  options.load = In("empty");
  EXPECT_EQ(ExitCodeOf(OpenCheckpoint(fs_, options, Ignore).status()), kExitCorruptCheckpoint);
}

TEST_F(OpenCheckpointTest, ARunTakesItsOwnCheckpointWithTheOptimizer) {
  CheckpointOptions options;
  options.no_load_optim = true;
  options.load = In("base");
  options.save = In("run");
  SaveTo(options.load);
  const auto first = OpenCheckpoint(fs_, options, Ignore);
  ASSERT_THAT(first, IsOk());
  EXPECT_FALSE(first->is_own);
  EXPECT_EQ(first->restore, Restore::kWithoutOptimizer);
  SaveTo(options.save);
  const auto again = OpenCheckpoint(fs_, options, Ignore);
  ASSERT_THAT(again, IsOk());
  EXPECT_TRUE(again->is_own);
  EXPECT_EQ(again->restore, Restore::kEverything);
  options.load = options.save;
  const auto in_place = OpenCheckpoint(fs_, options, Ignore);
  ASSERT_THAT(in_place, IsOk());
  EXPECT_EQ(in_place->restore, Restore::kEverything);
}

TEST_F(OpenCheckpointTest, AnErrorNamesTheField) {
  CheckpointOptions options;
  options.load = In("damaged/latest_checkpointed_iteration.txt");
  EXPECT_THAT(std::string(OpenCheckpoint(fs_, options, Ignore).status().message()),
              StartsWith("checkpoint.load: "));
  options.load = In("empty");
  options.save = In("damaged");
  EXPECT_THAT(std::string(OpenCheckpoint(fs_, options, Ignore).status().message()),
              StartsWith("checkpoint.save: "));
}

class CheckBatchesTest : public ::testing::Test {
 protected:
  CheckBatchesTest() {
    CheckpointState state;
    state.run_id = "0123456789abcdef";
    state.iteration = 5;
    state.ints = {{"iteration", 5}, {"consumed_train_samples", 60}};
    state.strings = {{"config", kConfig}};
    SaveOptions save;
    save.directory = "run";
    EXPECT_THAT(SaveCheckpoint(fs_, save, state), IsOk());
  }

  CheckpointReader Open() {
    const auto found = FindLatestCheckpoint(fs_, "run");
    EXPECT_THAT(found, IsOk());
    auto reader = CheckpointReader::Open(fs_, found->directory);
    EXPECT_THAT(reader, IsOk());
    return *std::move(reader);
  }

  // The checks of a run that continues the checkpoint with these fields written anew.
  absl::Status CheckWith(const std::vector<std::string>& overrides) {
    const ParsedConfig now = ParseConfig(kConfig, "x", overrides);
    EXPECT_TRUE(now.errors.empty());
    return CheckBatches(Open(), now.config, now.locations);
  }
  absl::Status CheckLeft(const std::vector<std::string>& overrides, int64_t num_samples) {
    const ParsedConfig now = ParseConfig(kConfig, "x", overrides);
    EXPECT_TRUE(now.errors.empty());
    warnings_.clear();
    return CheckSamplesLeft(Open(), now.config, num_samples,
                            [this](const std::string& warning) { warnings_.push_back(warning); });
  }

  static constexpr char kConfig[] =
      "parallel { data_parallel_size: 4 }\n"
      "train { train_iters: 10 global_batch_size: 12 micro_batch_size: 3 }\n"
      "data { dataloader_type: cyclic data_sharding: true }\n";

  MemoryFileSystem fs_;
  std::vector<std::string> warnings_;
};

TEST_F(CheckBatchesTest, AnOrderOfOneNumberOfRanksIsNotContinuedWithAnother) {
  EXPECT_THAT(CheckWith({}), IsOk());
  for (const char* const other : {"parallel.data_parallel_size=2", "train.micro_batch_size=1"}) {
    const absl::Status status = CheckWith({other});
    EXPECT_EQ(ExitCodeOf(status), kExitConfig) << other;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("took samples in the order of parallel.data_parallel_size = 4 and "
                          "train.micro_batch_size = 3; that of "))
        << other;
  }
  for (const char* const order : {"data.data_sharding=false", "data.dataloader_type=single"})
    EXPECT_THAT(CheckWith({"parallel.data_parallel_size=2", order}), IsOk()) << order;
}

TEST_F(CheckBatchesTest, SmallerBatchesMayNeedMoreSamplesThanAreDrawnForThem) {
  // 60 samples in 5 iterations of 12, and 5 iterations more.
  EXPECT_THAT(CheckLeft({}, 120), IsOk());
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_THAT(CheckLeft({}, 119), IsOk());
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("ends with an error after iteration 9:")));
  EXPECT_THAT(CheckLeft({"train.global_batch_size=6"}, 90), IsOk());
  EXPECT_THAT(warnings_, IsEmpty());
  // What is drawn for 12 iterations of 6, and for the number of them that suffices for 12.
  EXPECT_THAT(CheckLeft({"train.global_batch_size=6", "train.train_iters=12"}, 72), IsOk());
  EXPECT_THAT(warnings_,
              ElementsAre(AllOf(HasSubstr("has taken 60 samples, and the iterations from 6 to 12 "
                                          "take 42; the training data that are drawn for their "
                                          "batches end after 72, so that training ends with an "
                                          "error after iteration 7: "),
                                HasSubstr("with train.train_iters = 17, for which more"))));
  const absl::Status status = CheckLeft({"train.global_batch_size=6"}, 60);
  EXPECT_EQ(ExitCodeOf(status), kExitConfig);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("has taken 60 samples, and the iterations from 6 to 10 take 30; the "
                        "training data that are drawn for their batches end after 60"));
  // Nothing is left to do.
  EXPECT_THAT(CheckLeft({"train.train_iters=5"}, 0), IsOk());
  // Three iterations of 9, of which the last begins before sample 84, and two of 12.
  constexpr char kGrowing[] = "train.rampup_batch_size={start: 3 increment: 3 samples: 84}";
  EXPECT_THAT(CheckLeft({kGrowing}, 111), IsOk());
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_THAT(CheckLeft({kGrowing}, 110), IsOk());
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("ends with an error after iteration 9:")));
  EXPECT_THAT(CheckLeft({kGrowing}, 68), Not(IsOk()));
  // The data of a phase begin with their first sample.
  EXPECT_THAT(CheckLeft({"train.phase_transition_iterations=[5]"}, 60), IsOk());
}

}  // namespace
}  // namespace megatron
