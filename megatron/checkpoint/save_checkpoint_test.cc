#include "megatron/checkpoint/save_checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/fault_file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/base/quantity.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/checkpoint/test_state.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

SaveOptions Options(int64_t chunk_bytes = 64) {
  SaveOptions options;
  options.directory = "/save";
  options.chunk_bytes = chunk_bytes;
  return options;
}

absl::Status SaveByRanks(FileSystem& fs, const TestState& state, int world_size) {
  ThreadAgreement agreement(world_size);
  std::vector<absl::Status> results(static_cast<size_t>(world_size));
  RunRanks(world_size, [&](int rank) {
    SaveOptions options = Options();
    options.rank = rank;
    options.world_size = world_size;
    options.agree = [&](absl::Status status) { return agreement.Agree(std::move(status)); };
    results[static_cast<size_t>(rank)] =
        SaveCheckpoint(fs, options, state.ForRank(rank, world_size));
  });
  for (const absl::Status& result : results) EXPECT_EQ(result, results[0]);
  return results[0];
}

// Checks that the newest checkpoint is whole and holds the state of its iteration, which it
// returns.
absl::StatusOr<int64_t> LatestWholeIteration(FileSystem& fs) {
  const auto found = FindLatestCheckpoint(fs, "/save", Check::kContents);
  if (!found.ok()) return found.status();
  const auto reader = CheckpointReader::Open(fs, found->directory);
  if (!reader.ok()) return reader.status();
  const absl::Status status = TestState(found->iteration).Compare(*reader);
  if (!status.ok()) return status;
  return found->iteration;
}

std::map<std::string, std::string> AllFiles(FileSystem& fs, const std::string& directory) {
  std::map<std::string, std::string> files;
  const std::vector<std::string> names = *fs.List(directory);
  for (const std::string& name : names) {
    files[name] = *ReadFileToString(fs, JoinPath(directory, name));
  }
  return files;
}

TEST(SaveCheckpointTest, AManifestThatReadersWouldRefuseIsNotCommitted) {
  MemoryFileSystem fs, other;
  const TestState first(1), second(2);
  ASSERT_THAT(SaveCheckpoint(fs, Options(), first.Whole()), IsOk());
  ASSERT_THAT(SaveCheckpoint(other, Options(), second.Whole()), IsOk());
  const int64_t bytes = other.Stat("/save/iter_0000002/manifest.json")->size;

  SaveOptions options = Options();
  options.max_manifest_bytes = bytes - 1;
  EXPECT_THAT(SaveCheckpoint(fs, options, second.Whole()),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("manifest.json' would have")));
  EXPECT_THAT(LatestWholeIteration(fs), IsOkAndHolds(1));
  EXPECT_THAT(fs.List("/save"),
              IsOkAndHolds(ElementsAre("iter_0000001", "latest_checkpointed_iteration.txt")));

  options.max_manifest_bytes = bytes;
  EXPECT_THAT(SaveCheckpoint(fs, options, second.Whole()), IsOk());
  EXPECT_THAT(LatestWholeIteration(fs), IsOkAndHolds(2));
}

TEST(SaveCheckpointTest, TensorsInPiecesAreTheSameFilesAndErrorsComeThrough) {
  MemoryFileSystem fs, in_pieces;
  const TestState values_of_3(3);
  CheckpointState state = values_of_3.ForRank(0, 1);
  SaveOptions options = Options();
  options.chunk_bytes = 16;
  ASSERT_THAT(SaveCheckpoint(fs, options, state), IsOk());
  int64_t pieces = 0;
  for (ShardedTensor& block : state.tensors) {
    const Tensor values = block.tensor;
    block.tensor = Tensor(nullptr, values.dtype(), values.shape(), {DeviceType::kMeta});
    block.elements = [values, &pieces](int64_t begin, const Tensor& out) {
      ++pieces;
      EXPECT_LE(out.bytes(), 16);
      std::memcpy(out.raw(),
                  static_cast<const char*>(values.raw()) + begin * SizeOf(values.dtype()),
                  static_cast<size_t>(out.bytes()));
      return absl::OkStatus();
    };
  }
  ASSERT_THAT(SaveCheckpoint(in_pieces, options, state), IsOk());
  EXPECT_GT(pieces, static_cast<int64_t>(state.tensors.size()));
  const std::string directory = "/save/iter_0000003";
  const auto names = fs.List(directory);
  ASSERT_THAT(names, IsOk());
  for (const std::string& name : *names) {
    const std::string path = JoinPath(directory, name);
    EXPECT_EQ(*ReadFileToString(in_pieces, path), *ReadFileToString(fs, path)) << name;
  }

  MemoryFileSystem failing;
  state.tensors.front().elements = [](int64_t, const Tensor&) {
    return absl::DataLossError("gone");
  };
  EXPECT_THAT(SaveCheckpoint(failing, options, state),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(state.tensors.front().name)));
  EXPECT_FALSE(failing.Stat(directory).ok());
}

TEST(SaveCheckpointTest, TensorsFromASourceAreTheSameFilesAndErrorsOfTheSourceComeThrough) {
  MemoryFileSystem fs, sourced;
  const TestState values_of_3(3);
  CheckpointState state = values_of_3.ForRank(0, 1);
  ASSERT_THAT(SaveCheckpoint(fs, Options(), state), IsOk());
  for (ShardedTensor& block : state.tensors) {
    const Tensor values = block.tensor;
    block.tensor = Tensor(nullptr, values.dtype(), values.shape(), {DeviceType::kMeta});
    block.source = [values](const Tensor& out) {
      const char* const bytes = static_cast<const char*>(out.raw());
      EXPECT_TRUE(std::all_of(bytes, bytes + out.bytes(), [](char c) { return c == 0; }));
      std::memcpy(out.raw(), values.raw(), static_cast<size_t>(values.bytes()));
      return absl::OkStatus();
    };
  }
  ASSERT_THAT(SaveCheckpoint(sourced, Options(), state), IsOk());
  const std::string directory = "/save/iter_0000003";
  const auto names = fs.List(directory);
  ASSERT_THAT(names, IsOk());
  for (const std::string& name : *names) {
    const std::string path = JoinPath(directory, name);
    EXPECT_EQ(*ReadFileToString(sourced, path), *ReadFileToString(fs, path)) << name;
  }

  MemoryFileSystem failing;
  state.tensors.front().source = [](const Tensor&) { return absl::DataLossError("gone"); };
  EXPECT_THAT(SaveCheckpoint(failing, Options(), state),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(state.tensors.front().name)));
  EXPECT_FALSE(failing.Stat(directory).ok());
}

TEST(SaveCheckpointTest, WritesTheDocumentedFiles) {
  MemoryFileSystem fs;
  ASSERT_THAT(SaveCheckpoint(fs, Options(), TestState(7).Whole()), IsOk());
  EXPECT_THAT(fs.List("/save"),
              IsOkAndHolds(ElementsAre("iter_0000007", "latest_checkpointed_iteration.txt")));
  EXPECT_THAT(fs.List("/save/iter_0000007"),
              IsOkAndHolds(ElementsAre("manifest.json", "shard_00000_of_00001.bin")));
  EXPECT_THAT(LatestWholeIteration(fs), IsOkAndHolds(7));
}

TEST(SaveCheckpointTest, TheSameStateGivesTheSameBytesInWhateverOrderItIsListed) {
  MemoryFileSystem first, second;
  const TestState test_state(7);
  ASSERT_THAT(SaveCheckpoint(first, Options(), test_state.Whole()), IsOk());
  CheckpointState reversed = test_state.Whole();
  std::reverse(reversed.tensors.begin(), reversed.tensors.end());
  ASSERT_THAT(SaveCheckpoint(second, Options(), reversed), IsOk());
  EXPECT_EQ(AllFiles(first, "/save/iter_0000007"), AllFiles(second, "/save/iter_0000007"));
}

TEST(SaveCheckpointTest, SeveralRanksWriteOneCheckpointThatAnyNumberReads) {
  for (int world_size : {1, 2, 3, 4}) {
    MemoryFileSystem fs;
    ASSERT_THAT(SaveByRanks(fs, TestState(7), world_size), IsOk());
    EXPECT_EQ(fs.List("/save/iter_0000007")->size(), static_cast<size_t>(world_size) + 1);
    EXPECT_THAT(LatestWholeIteration(fs), IsOkAndHolds(7)) << world_size;
  }
}

TEST(SaveCheckpointTest, ElementsThatNoRankOrTwoRanksWriteAreAnError) {
  for (int replica : {0, 1}) {
    MemoryFileSystem fs;
    const TestState test_state(7);
    CheckpointState state = test_state.Whole();
    ShardedTensor& weight = state.tensors[0];
    if (replica == 0) state.tensors.push_back(weight);
    if (replica == 1) weight.tensor = weight.tensor.Slice(0, 0, 5);
    EXPECT_THAT(SaveCheckpoint(fs, Options(), state),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'decoder.weight'")));
    EXPECT_THAT(fs.List("/save"), IsOkAndHolds(ElementsAre()));
  }
}

TEST(SaveCheckpointTest, NamesThatAFileCouldNotHoldAreRefused) {
  MemoryFileSystem fs;
  const TestState test_state(7);
  CheckpointState state = test_state.Whole();
  state.tensors[0].name = "../weight";
  EXPECT_THAT(SaveCheckpoint(fs, Options(), state),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'../weight'")));
  state = test_state.Whole();
  state.run_id = "My Run";
  EXPECT_THAT(SaveCheckpoint(fs, Options(), state),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'My Run'")));
}

TEST(SaveCheckpointTest, TooLittleSpaceIsToldBeforeWritingWithBothFigures) {
  MemoryFileSystem fs;
  ASSERT_THAT(SaveCheckpoint(fs, Options(), TestState(1).Whole()), IsOk());
  fs.set_free_bytes(1000);
  EXPECT_THAT(SaveCheckpoint(fs, Options(), TestState(2).Whole()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("needs "), HasSubstr("'/save' has 1000 B free"))));
  EXPECT_THAT(fs.List("/save"),
              IsOkAndHolds(ElementsAre("iter_0000001", "latest_checkpointed_iteration.txt")));
}

TEST(SaveCheckpointTest, AsksForTheRoomThatItsManifestTakesAtMost) {
  MemoryFileSystem fs;
  constexpr int64_t kChunk = 64;
  ASSERT_THAT(SaveCheckpoint(fs, Options(kChunk), TestState(1).Whole()), IsOk());
  const auto reader = CheckpointReader::Open(fs, "/save/iter_0000001");
  ASSERT_THAT(reader, IsOk());
  const Manifest& manifest = reader->manifest();
  int64_t pieces = 0;
  for (const TensorEntry& tensor : manifest.tensors)
    pieces += static_cast<int64_t>(tensor.pieces.size());
  const int64_t shard = manifest.shards[0].bytes;
  const int64_t room =
      ManifestRoom(static_cast<int64_t>(manifest.tensors.size()), pieces, shard, kChunk);
  const auto text = ReadFileToString(fs, "/save/iter_0000001/manifest.json");
  ASSERT_THAT(text, IsOk());
  EXPECT_LE(static_cast<int64_t>(text->size()), room);
  fs.set_free_bytes(shard + room - 1);
  EXPECT_THAT(SaveCheckpoint(fs, Options(kChunk), TestState(2).Whole()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr(absl::StrCat("needs ", FormatBytes(shard + room)))));
  fs.set_free_bytes(shard + room);
  EXPECT_THAT(SaveCheckpoint(fs, Options(kChunk), TestState(2).Whole()), IsOk());
}

TEST(SaveCheckpointTest, ReplacesTheSameIterationOfTheSameRunOnly) {
  MemoryFileSystem fs;
  const TestState test_state(7);
  CheckpointState state = test_state.Whole();
  state.ints["consumed_train_samples"] = 1;
  ASSERT_THAT(SaveCheckpoint(fs, Options(), state), IsOk());
  ASSERT_THAT(SaveCheckpoint(fs, Options(), test_state.Whole()), IsOk());
  EXPECT_THAT(LatestWholeIteration(fs), IsOkAndHolds(7));
  EXPECT_THAT(fs.List("/save"),
              IsOkAndHolds(ElementsAre("iter_0000007", "latest_checkpointed_iteration.txt")));

  state.run_id = "fedcba9876543210";
  EXPECT_THAT(SaveCheckpoint(fs, Options(), state),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("'/save/iter_0000007'"), HasSubstr(kTestRunId),
                             HasSubstr("fedcba9876543210"))));
  EXPECT_THAT(LatestWholeIteration(fs), IsOkAndHolds(7));
}

TEST(SaveCheckpointTest, ADamagedCheckpointOfTheSameIterationIsReplaced) {
  MemoryFileSystem fs;
  ASSERT_THAT(SaveCheckpoint(fs, Options(), TestState(7).Whole()), IsOk());
  fs.MutableContents("/save/iter_0000007/manifest.json")->resize(100);
  ASSERT_THAT(SaveCheckpoint(fs, Options(), TestState(7).Whole()), IsOk());
  EXPECT_THAT(LatestWholeIteration(fs), IsOkAndHolds(7));
}

TEST(SaveCheckpointTest, WithoutAFileThatNamesTheLatestOldOnesGoToo) {
  MemoryFileSystem fs;
  SaveOptions options = Options();
  options.keep = 1;
  const std::string mine = "/save/latest_checkpointed_iteration.txt/mine";
  ASSERT_THAT(fs.CreateDirs(mine), IsOk());
  for (int iteration = 1; iteration <= 3; ++iteration) {
    const absl::Status status = SaveCheckpoint(fs, options, TestState(iteration).Whole());
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(IsSaved(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("latest_checkpointed_iteration.txt"));
    EXPECT_THAT(LatestWholeIteration(fs), IsOkAndHolds(iteration));
  }
  EXPECT_THAT(fs.List("/save"),
              IsOkAndHolds(ElementsAre("iter_0000003", "latest_checkpointed_iteration.txt")));
  EXPECT_TRUE(fs.Stat(mine).ok());
  EXPECT_FALSE(IsSaved(absl::OkStatus()));
}

TEST(SaveCheckpointTest, SomethingElseUnderTheNameIsLeftAlone) {
  MemoryFileSystem fs;
  ASSERT_THAT(fs.CreateDirs("/save/iter_0000007/mp_rank_00"), IsOk());
  EXPECT_THAT(SaveCheckpoint(fs, Options(), TestState(7).Whole()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("move it away")));
  EXPECT_THAT(fs.Stat("/save/iter_0000007/mp_rank_00"), IsOk());
}

// Fails operation after operation of a save until one gets through.
void TestEveryFault(int error_number, bool lasting) {
  for (int n = 0;; ++n) {
    SCOPED_TRACE(absl::StrCat("operation ", n, ", errno ", error_number));
    MemoryFileSystem base;
    FaultFileSystem fs(&base);
    SaveOptions options = Options();
    options.keep = 1;
    ASSERT_THAT(SaveCheckpoint(fs, options, TestState(1).Whole()), IsOk());
    fs.FailAt(n, error_number, lasting);
    const absl::Status status = SaveCheckpoint(fs, options, TestState(2).Whole());
    const bool struck = fs.has_failed();
    fs.ClearFault();

    const absl::StatusOr<int64_t> latest = LatestWholeIteration(fs);
    ASSERT_THAT(latest, IsOk());
    EXPECT_TRUE(*latest == 1 || *latest == 2);
    const bool saved = status.ok() || absl::StrContains(status.message(), "itself is saved");
    EXPECT_TRUE(*latest == 2 || !saved) << status;
    EXPECT_TRUE(status.ok() || absl::StrContains(status.message(), "'/")) << "names no path";

    // Training goes on, and the next save leaves nothing behind.
    ASSERT_THAT(SaveCheckpoint(fs, options, TestState(3).Whole()), IsOk());
    EXPECT_THAT(LatestWholeIteration(fs), IsOkAndHolds(3));
    EXPECT_THAT(fs.List("/save"),
                IsOkAndHolds(ElementsAre("iter_0000003", "latest_checkpointed_iteration.txt")));
    if (!struck) {
      EXPECT_GT(n, 30);
      break;
    }
  }
}

TEST(SaveFaultTest, AFullDiskAtAnyOperationKeepsTheLastCheckpoint) {
  TestEveryFault(ENOSPC, /*lasting=*/true);
  TestEveryFault(ENOSPC, /*lasting=*/false);
}

TEST(SaveFaultTest, AnyOtherErrorAtAnyOperationKeepsTheLastCheckpoint) {
  for (int error_number : {EIO, EDQUOT, EMFILE, EROFS}) {
    TestEveryFault(error_number, /*lasting=*/false);
  }
}

TEST(SaveFaultTest, AFailingRankFailsAllAndLeavesNothing) {
  MemoryFileSystem base;
  ASSERT_THAT(SaveByRanks(base, TestState(1), 3), IsOk());
  FaultFileSystem fs(&base);
  // The operations of three threads mix, so that any of them may be the one that fails.
  int failures = 0;
  for (int n = 0; n < 60; ++n) {
    fs.FailAt(n, ENOSPC, /*lasting=*/true);
    const absl::Status status = SaveByRanks(fs, TestState(2), 3);
    failures += !status.ok();
    fs.ClearFault();
    const absl::StatusOr<int64_t> latest = LatestWholeIteration(fs);
    ASSERT_THAT(latest, IsOk());
    if (*latest == 2) {
      ASSERT_THAT(base.RemoveTree("/save"), IsOk());
      ASSERT_THAT(SaveByRanks(fs, TestState(1), 3), IsOk());
    }
  }
  EXPECT_GT(failures, 30);
}

TEST(SaveFaultTest, TheMessageOfAFullDiskNamesFileErrorAndFigures) {
  MemoryFileSystem base;
  FaultFileSystem fs(&base);
  ASSERT_THAT(SaveCheckpoint(fs, Options(), TestState(1).Whole()), IsOk());
  absl::Status status;
  for (int n = 0; !absl::StrContains(status.message(), "write"); ++n) {
    fs.FailAt(n, ENOSPC, /*lasting=*/true);
    status = SaveCheckpoint(fs, Options(), TestState(2).Whole());
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               AllOf(HasSubstr("/save/iter_0000002.tmp/shard_00000_of_00001.bin"),
                                     HasSubstr("No space left on device"), HasSubstr("needs"),
                                     HasSubstr("free"))));
}

}  // namespace
}  // namespace megatron
