// Local checkpoints on machines that are file systems in memory, by ranks that are threads.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/local/find_local_checkpoint.h"
#include "megatron/checkpoint/local/local_place.h"
#include "megatron/checkpoint/local/peer_files.h"
#include "megatron/checkpoint/local/save_local_checkpoint.h"
#include "megatron/checkpoint/names.h"
#include "megatron/checkpoint/test_state.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kDirectory[] = "/local/run";

// A job on machines with so many ranks each.
class Job {
 public:
  explicit Job(std::vector<int> ranks_of_machines) : disks_(ranks_of_machines.size()) {
    for (size_t machine = 0; machine < ranks_of_machines.size(); ++machine) {
      disks_[machine] = std::make_shared<MemoryFileSystem>();
      for (int i = 0; i < ranks_of_machines[machine]; ++i) disk_of_rank_.push_back(machine);
    }
  }

  int size() const { return static_cast<int>(disk_of_rank_.size()); }
  std::shared_ptr<MemoryFileSystem>& disk(size_t machine) { return disks_[machine]; }
  MemoryFileSystem& disk_of(int rank) { return *disks_[disk_of_rank_[static_cast<size_t>(rank)]]; }

  using Rank = std::function<absl::Status(const ProcessGroup&, const LocalPlace&)>;
  // Runs a start of the job, in which the ranks find their machines first.
  absl::Status Run(const std::string& start, const Rank& rank_function) {
    agreement_ = std::make_unique<ThreadAgreement>(size());
    return RunRanks(size(), [&](int rank, const ProcessGroup& world) -> absl::Status {
      MEGATRON_ASSIGN_OR_RETURN(const LocalPlace place,
                                FindMachines(disk_of(rank), kDirectory, start, world, agree()));
      return rank_function(world, place);
    });
  }

  absl::Status Save(const std::string& start, int64_t iteration, int copies) {
    const TestState state(iteration);
    return Run(start, [&](const ProcessGroup& world, const LocalPlace& place) {
      LocalSaveOptions options;
      options.place = place;
      options.peer_copies = copies;
      options.ranks = world;
      options.agree = agree();
      options.chunk_bytes = 64;
      return SaveLocalCheckpoint(disk_of(world.rank()), options,
                                 state.ForRank(world.rank(), world.size()));
    });
  }

  // Finds the newest, reads all of it on every rank, and compares that with the state that was
  // saved. Returns the iteration, or -1; sets the warnings.
  absl::StatusOr<int64_t> Restore(std::vector<std::string>* warnings = nullptr,
                                  int64_t newer_than = -1) {
    std::vector<int64_t> iterations(static_cast<size_t>(size()), -1);
    MEGATRON_RETURN_IF_ERROR(
        Run("restore", [&](const ProcessGroup& world, const LocalPlace& place) -> absl::Status {
          MemoryFileSystem& disk = disk_of(world.rank());
          MEGATRON_ASSIGN_OR_RETURN(
              FoundLocalCheckpoint found,
              FindLocalCheckpoint(disk, place, kTestRunId, newer_than, world));
          if (world.rank() == 0 && warnings != nullptr) *warnings = found.warnings;
          if (!found.checkpoint) return absl::OkStatus();
          const int64_t iteration = found.checkpoint->manifest.iteration;
          iterations[static_cast<size_t>(world.rank())] = iteration;
          PeerFiles files(disk, *std::move(found.checkpoint), place.machines, world.rank());
          const CheckpointReader reader = files.OpenReader("local");
          if (files.is_spread()) files.Start(world);
          const absl::Status status = Compare(reader, iteration);
          files.Finish(status.ok());
          return status;
        }));
    EXPECT_EQ(std::count(iterations.begin(), iterations.end(), iterations[0]), size());
    return iterations[0];
  }

  Agreement agree() {
    return [this](absl::Status status) { return agreement_->Agree(std::move(status)); };
  }

 private:
  // The state has one string more, which says who saved it.
  static absl::Status Compare(const CheckpointReader& reader, int64_t iteration) {
    Manifest manifest = reader.manifest();
    manifest.strings.erase(kLocalStart);
    return TestState(iteration).Compare(reader, manifest);
  }

  std::vector<std::shared_ptr<MemoryFileSystem>> disks_;
  std::vector<size_t> disk_of_rank_;
  std::unique_ptr<ThreadAgreement> agreement_;
};

std::vector<std::string> Names(FileSystem& fs, const std::string& directory) {
  return fs.List(directory).value_or(std::vector<std::string>());
}

std::string FlipOneByte(FileSystem& fs, const std::string& path, size_t place) {
  std::string bytes = *ReadFileToString(fs, path);
  bytes[place] = static_cast<char>(bytes[place] ^ 1);
  EXPECT_THAT(WriteFileAtomically(fs, path, bytes), IsOk());
  return bytes;
}

TEST(LocalPlaceTest, RanksThatSeeEachOthersFilesAreOnOneMachine) {
  Job job({2, 3, 1});
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(job.Run(absl::StrCat("start", i),
                        [&](const ProcessGroup&, const LocalPlace& place) {
                          EXPECT_THAT(place.machines, ElementsAre(0, 0, 2, 2, 2, 5));
                          return absl::OkStatus();
                        }),
                IsOk());
    EXPECT_THAT(Names(*job.disk(0), kDirectory), IsEmpty());
  }
}

TEST(LocalPlaceTest, CopiesAreOnTheNextMachinesAtTheSamePlace) {
  const std::vector<int> machines = {0, 0, 2, 2, 4};
  EXPECT_EQ(KeeperOf(machines, 0, 1), 2);
  EXPECT_EQ(KeeperOf(machines, 1, 1), 3);
  EXPECT_EQ(KeeperOf(machines, 3, 1), 4);
  EXPECT_EQ(KeeperOf(machines, 4, 1), 0);
  EXPECT_EQ(KeeperOf(machines, 1, 2), 4);
  EXPECT_THAT(DistinctMachines(machines), ElementsAre(0, 2, 4));
  EXPECT_THAT(RanksOn(machines, 2), ElementsAre(2, 3));
}

TEST(LocalCheckpointTest, EveryRankReadsAllOfIt) {
  for (const std::vector<int>& machines :
       std::vector<std::vector<int>>{{1}, {3}, {1, 1}, {2, 2}, {1, 2, 3}}) {
    Job job(machines);
    ASSERT_THAT(job.Save("a", 12, 0), IsOk());
    EXPECT_EQ(*job.Restore(), 12);
  }
}

TEST(LocalCheckpointTest, ALostMachineCostsNothingIfAnotherHasCopies) {
  for (size_t lost = 0; lost < 3; ++lost) {
    Job job({2, 1, 2});
    ASSERT_THAT(job.Save("a", 10, 1), IsOk());
    ASSERT_THAT(job.Save("a", 12, 1), IsOk());
    job.disk(lost) = std::make_shared<MemoryFileSystem>();
    std::vector<std::string> warnings;
    EXPECT_EQ(*job.Restore(&warnings), 12) << lost;
    EXPECT_THAT(warnings, IsEmpty());
  }
  // Two copies outlive two machines.
  Job job({1, 1, 1, 1});
  ASSERT_THAT(job.Save("a", 12, 2), IsOk());
  job.disk(1) = std::make_shared<MemoryFileSystem>();
  job.disk(2) = std::make_shared<MemoryFileSystem>();
  EXPECT_EQ(*job.Restore(), 12);
  job.disk(3) = std::make_shared<MemoryFileSystem>();
  std::vector<std::string> warnings;
  EXPECT_EQ(*job.Restore(&warnings), -1);
  EXPECT_THAT(warnings, ElementsAre("the local checkpoint of iteration 12 is not taken: 3 of its 4 "
                                    "shards are there and sound"));
}

TEST(LocalCheckpointTest, WithoutCopiesALostMachineLosesIt) {
  Job job({1, 1});
  ASSERT_THAT(job.Save("a", 12, 0), IsOk());
  job.disk(1) = std::make_shared<MemoryFileSystem>();
  EXPECT_EQ(*job.Restore(), -1);
}

TEST(LocalCheckpointTest, FewerOrMoreRanksRead) {
  Job eight({4, 4});
  ASSERT_THAT(eight.Save("a", 12, 1), IsOk());
  Job one({3}), three({1, 1, 1});
  one.disk(0) = eight.disk(1);
  EXPECT_EQ(*one.Restore(), 12);
  three.disk(1) = eight.disk(0);
  EXPECT_EQ(*three.Restore(), 12);
}

TEST(LocalCheckpointTest, TwoStay) {
  Job job({2, 1});
  for (int64_t iteration = 1; iteration <= 5; ++iteration) {
    ASSERT_THAT(job.Save("a", iteration, 1), IsOk());
    EXPECT_LE(Names(*job.disk(0), kDirectory).size(), size_t{kLocalCheckpoints});
  }
  for (size_t machine = 0; machine < 2; ++machine) {
    EXPECT_THAT(Names(*job.disk(machine), kDirectory), ElementsAre("iter_0000004", "iter_0000005"));
  }
  // Its own three shards and their manifests, or with those of the other machine.
  EXPECT_EQ(Names(*job.disk(1), absl::StrCat(kDirectory, "/iter_0000005")).size(), 6u);
  EXPECT_EQ(*job.Restore(nullptr, 5), -1);
  EXPECT_EQ(*job.Restore(nullptr, 4), 5);
  ASSERT_THAT(RemoveLocalCheckpoints(*job.disk(0), kDirectory), IsOk());
  EXPECT_FALSE(job.disk(0)->Stat(kDirectory).ok());
}

// A start that went back to an earlier iteration saves others of the same number.
TEST(LocalCheckpointTest, WhatAnEarlierStartHasLeftIsNeitherKeptNorMixedIn) {
  Job job({1, 1});
  ASSERT_THAT(job.Save("a", 12, 0), IsOk());
  ASSERT_THAT(job.Save("a", 14, 0), IsOk());
  const std::shared_ptr<MemoryFileSystem> away = job.disk(1);
  job.disk(1) = std::make_shared<MemoryFileSystem>();
  ASSERT_THAT(job.Save("b", 12, 0), IsOk());
  EXPECT_THAT(Names(*job.disk(0), kDirectory), ElementsAre("iter_0000012"));
  EXPECT_EQ(*job.Restore(), 12);
  // The second machine comes back with what the first start has saved.
  job.disk(1) = away;
  std::vector<std::string> warnings;
  EXPECT_EQ(*job.Restore(&warnings), -1);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("iteration 14 is not taken: 1 of its 2"),
                                    HasSubstr("iteration 12 is not taken: 1 of its 2")));
}

TEST(LocalCheckpointTest, ADamagedShardIsNotTaken) {
  const std::string directory = absl::StrCat(kDirectory, "/iter_0000012/");
  const std::string shard = directory + "shard_00001_of_00002.bin",
                    part = directory + "part_00001_of_00002.json";
  Job intact({1, 1});
  ASSERT_THAT(intact.Save("a", 11, 0), IsOk());
  ASSERT_THAT(intact.Save("a", 12, 0), IsOk());
  const std::vector<std::function<void(FileSystem&)>> damages = {
      [&](FileSystem& fs) { FlipOneByte(fs, shard, 9); },
      [&](FileSystem& fs) { FlipOneByte(fs, shard, 200); },
      [&](FileSystem& fs) { FlipOneByte(fs, part, 300); },
      [&](FileSystem& fs) { ASSERT_THAT(fs.Remove(part), IsOk()); },
      [&](FileSystem& fs) { ASSERT_THAT(fs.Remove(shard), IsOk()); },
      [&](FileSystem& fs) {
        const std::string bytes = *ReadFileToString(fs, shard);
        ASSERT_THAT(WriteFileAtomically(fs, shard, bytes.substr(0, bytes.size() - 1)), IsOk());
      }};
  for (const auto& damage : damages) {
    Job job({1, 1});
    job.disk(0) = intact.disk(0);
    job.disk(1) =
        intact.disk(1)->CrashImage(intact.disk(1)->operation_count(), CrashModel::kKillProcess, 0);
    damage(*job.disk(1));
    std::vector<std::string> warnings;
    EXPECT_EQ(*job.Restore(&warnings), 11);
    EXPECT_THAT(warnings, ElementsAre(HasSubstr("1 of its 2 shards are there and sound")));
  }
  // A copy takes its place.
  Job copied({1, 1});
  ASSERT_THAT(copied.Save("a", 12, 1), IsOk());
  FlipOneByte(*copied.disk(1), shard, 200);
  EXPECT_EQ(*copied.Restore(), 12);
}

// Whatever each machine has done when all are killed, the newest or the one before is found; what a
// power cut tears is not taken.
TEST(LocalCheckpointTest, AKillLeavesTheNewOneOrTheOneBefore) {
  Job job({1, 1});
  ASSERT_THAT(job.Save("a", 10, 1), IsOk());
  const int before[] = {job.disk(0)->operation_count(), job.disk(1)->operation_count()};
  ASSERT_THAT(job.Save("a", 12, 1), IsOk());
  const int after[] = {job.disk(0)->operation_count(), job.disk(1)->operation_count()};
  std::map<int64_t, int> found;
  for (const CrashModel model : {CrashModel::kKillProcess, CrashModel::kTearUnsynced}) {
    for (int first = before[0]; first <= after[0]; ++first) {
      // Ranks agree between the steps, so that machines are at most a step apart.
      for (const int second : {first - before[0] + before[1], after[1], before[1]}) {
        Job killed({1, 1});
        killed.disk(0) = job.disk(0)->CrashImage(first, model, 1);
        killed.disk(1) = job.disk(1)->CrashImage(std::min(second, after[1]), model, 2);
        const absl::StatusOr<int64_t> iteration = killed.Restore();
        ASSERT_THAT(iteration, IsOk());
        if (model == CrashModel::kKillProcess) {
          EXPECT_NE(*iteration, -1) << first << " " << second;
        }
        ++found[*iteration];
      }
    }
  }
  EXPECT_GT(found[10], 0);
  EXPECT_GT(found[12], 0);
}

TEST(LocalCheckpointTest, AFullDiskIsToldAndLeavesTheOneBefore) {
  Job job({1, 1});
  ASSERT_THAT(job.Save("a", 10, 0), IsOk());
  job.disk(1)->set_free_bytes(100);
  EXPECT_THAT(job.Save("a", 12, 0), absl_testing::StatusIs(absl::StatusCode::kResourceExhausted,
                                                           HasSubstr("a local checkpoint needs")));
  for (size_t machine = 0; machine < 2; ++machine)
    EXPECT_THAT(Names(*job.disk(machine), kDirectory), ElementsAre("iter_0000010"));
  EXPECT_EQ(*job.Restore(), 10);
}

// The second machine was killed before it had renamed what the first one had.
TEST(LocalCheckpointTest, AllMachinesKeepTheSameOneAfterAKillBetweenTheirRenamings) {
  Job job({1, 1});
  ASSERT_THAT(job.Save("a", 10, 0), IsOk());
  ASSERT_THAT(job.Save("a", 20, 0), IsOk());
  const auto path = [](DirectoryKind kind) {
    return absl::StrCat(kDirectory, "/", DirectoryName(20, kind));
  };
  ASSERT_THAT(job.disk(1)->Rename(path(DirectoryKind::kFinal), path(DirectoryKind::kTemporary)),
              IsOk());
  ASSERT_EQ(*job.Restore(), 10);
  job.disk(1)->set_free_bytes(100);
  EXPECT_FALSE(job.Save("b", 25, 0).ok());
  for (size_t machine = 0; machine < 2; ++machine)
    EXPECT_THAT(Names(*job.disk(machine), kDirectory), ElementsAre("iter_0000010"));
  EXPECT_EQ(*job.Restore(), 10);
}

TEST(LocalCheckpointTest, AMachineThatHasNoneCostsTheOthersNothing) {
  Job job({1, 1});
  ASSERT_THAT(job.Save("a", 10, 1), IsOk());
  ASSERT_THAT(job.Save("a", 20, 1), IsOk());
  job.disk(1) = std::make_shared<MemoryFileSystem>();
  job.disk(1)->set_free_bytes(100);
  EXPECT_FALSE(job.Save("b", 25, 1).ok());
  EXPECT_THAT(Names(*job.disk(0), kDirectory), ElementsAre("iter_0000020"));
  EXPECT_EQ(*job.Restore(), 20);
}

// A rank that cannot read ends the others' reading instead of leaving them waiting.
TEST(PeerFilesTest, AFailureOfOneRankEndsTheReadingOfAll) {
  Job job({1, 1, 1});
  ASSERT_THAT(job.Save("a", 12, 0), IsOk());
  EXPECT_FALSE(
      job.Run("restore",
              [&](const ProcessGroup& world, const LocalPlace& place) -> absl::Status {
                MEGATRON_ASSIGN_OR_RETURN(
                    FoundLocalCheckpoint found,
                    FindLocalCheckpoint(job.disk_of(world.rank()), place, kTestRunId, -1, world));
                PeerFiles files(job.disk_of(world.rank()), *std::move(found.checkpoint),
                                place.machines, world.rank());
                const CheckpointReader reader = files.OpenReader("local");
                files.Start(world);
                if (world.rank() == 1) {
                  files.Finish(/*ok=*/false);
                  return absl::DataLossError("mine");
                }
                absl::Status status;
                while (status.ok()) status = reader.Verify().empty() ? status : reader.Verify()[0];
                files.Finish(/*ok=*/false);
                return status;
              })
          .ok());
}

}  // namespace
}  // namespace megatron
