// Power cuts and kills at every operation of saving: the state before or the state after is there,
// and training goes on.

#include <set>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "megatron/checkpoint/test_state.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

constexpr int kShufflesPerImage = 8;

struct Scenario {
  std::vector<int64_t> iterations;  // saved one after the other; an iteration may come again
  int keep = 0;
  int world_size = 1;
};

absl::Status Save(FileSystem& fs, int64_t iteration, const Scenario& scenario) {
  const TestState state(iteration);
  ThreadAgreement agreement(scenario.world_size);
  absl::Status result;
  RunRanks(scenario.world_size, [&](int rank) {
    SaveOptions options;
    options.directory = "/runs/save";
    options.chunk_bytes = 64;
    options.keep = scenario.keep;
    options.rank = rank;
    options.world_size = scenario.world_size;
    options.agree = [&](absl::Status status) { return agreement.Agree(std::move(status)); };
    const absl::Status status =
        SaveCheckpoint(fs, options, state.ForRank(rank, scenario.world_size));
    if (rank == 0) result = status;
  });
  return result;
}

// The iteration that is found, 0 for none; -1 where something is found that isn't what was saved.
int64_t LoadedIteration(FileSystem& fs) {
  const auto found = FindLatestCheckpoint(fs, "/runs/save", Check::kContents);
  if (absl::IsNotFound(found.status())) return 0;
  if (!found.ok()) {
    ADD_FAILURE() << found.status();
    return -1;
  }
  const auto reader = CheckpointReader::Open(fs, found->directory);
  EXPECT_THAT(reader, IsOk());
  const absl::Status status = TestState(found->iteration).Compare(*reader);
  EXPECT_THAT(status, IsOk());
  return status.ok() ? found->iteration : -1;
}

void TestImage(MemoryFileSystem& image, const std::set<int64_t>& expected,
               const Scenario& scenario) {
  EXPECT_THAT(expected, ::testing::Contains(LoadedIteration(image)));
  // Whatever the crash left lying about, the next saves get through.
  for (int64_t iteration : {scenario.iterations.back(), int64_t{99}}) {
    ASSERT_THAT(Save(image, iteration, scenario), IsOk());
    EXPECT_EQ(LoadedIteration(image), iteration);
  }
}

void TestEveryCrash(const Scenario& scenario) {
  MemoryFileSystem fs;
  std::vector<int> ends = {0};
  for (int64_t iteration : scenario.iterations) {
    ASSERT_THAT(Save(fs, iteration, scenario), IsOk());
    ends.push_back(fs.operation_count());
  }
  size_t saved = 0;
  for (int n = 0; n <= fs.operation_count(); ++n) {
    if (saved + 1 < ends.size() && n >= ends[saved + 1]) ++saved;
    std::set<int64_t> expected = {saved == 0 ? 0 : scenario.iterations[saved - 1]};
    if (n > ends[saved]) expected.insert(scenario.iterations[saved]);
    for (CrashModel model : {CrashModel::kKillProcess, CrashModel::kLoseUnsynced,
                             CrashModel::kTearUnsynced, CrashModel::kShuffleNames}) {
      const bool random = model >= CrashModel::kTearUnsynced;
      for (int seed = 0; seed < (random ? kShufflesPerImage : 1); ++seed) {
        SCOPED_TRACE(absl::StrCat("after operation ", n - 1, ", ", fs.Describe(n - 1), ", model ",
                                  static_cast<int>(model), ", seed ", seed));
        TestImage(*fs.CrashImage(n, model, static_cast<uint64_t>(seed)), expected, scenario);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
  EXPECT_GT(fs.operation_count(), 20 * static_cast<int>(scenario.iterations.size()));
}

TEST(CrashTest, AtAnyOperationTheLastCheckpointOrTheNewOneIsThere) {
  TestEveryCrash({{10, 20, 30}, /*keep=*/0, /*world_size=*/1});
}

TEST(CrashTest, KeepingOneCheckpointAlwaysLeavesOne) {
  TestEveryCrash({{10, 20, 30}, /*keep=*/1, /*world_size=*/1});
}

TEST(CrashTest, SavingAnIterationAgainNeverLosesIt) {
  TestEveryCrash({{10, 10, 10}, /*keep=*/1, /*world_size=*/1});
}

TEST(CrashTest, SeveralRanksCommitAsOne) {
  TestEveryCrash({{10, 20}, /*keep=*/1, /*world_size=*/2});
}

}  // namespace
}  // namespace megatron
