// Damage of every kind is found before anything is handed out, and the message says where it is.

#include <random>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "megatron/checkpoint/test_state.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kDirectory[] = "/save/iter_0000002";

std::string ShardPath(int index, int count) {
  return absl::StrCat(kDirectory, "/shard_0000", index, "_of_0000", count, ".bin");
}

void Save(FileSystem& fs, int64_t iteration, int64_t rows, int world_size) {
  const TestState state(iteration, rows);
  ThreadAgreement agreement(world_size);
  RunRanks(world_size, [&](int rank) {
    SaveOptions options;
    options.directory = "/save";
    options.chunk_bytes = 4096;
    options.rank = rank;
    options.world_size = world_size;
    options.agree = [&](absl::Status status) { return agreement.Agree(std::move(status)); };
    EXPECT_THAT(SaveCheckpoint(fs, options, state.ForRank(rank, world_size)), IsOk());
  });
}

// The first error of reading everything.
absl::Status ReadAll(FileSystem& fs) {
  const auto reader = CheckpointReader::Open(fs, kDirectory);
  if (!reader.ok()) return reader.status();
  const std::vector<absl::Status> errors = reader->Verify();
  return errors.empty() ? absl::OkStatus() : errors[0];
}

TEST(CorruptionTest, EverySingleFlippedBitIsFoundAndItsFileNamed) {
  MemoryFileSystem fs;
  Save(fs, 2, /*rows=*/30, /*world_size=*/2);
  ASSERT_THAT(ReadAll(fs), IsOk());
  int64_t flips = 0;
  const std::vector<std::string> names = *fs.List(kDirectory);
  for (const std::string& name : names) {
    const std::string path = JoinPath(kDirectory, name);
    std::string* const contents = fs.MutableContents(path);
    for (size_t bit = 0; bit < contents->size() * 8; ++bit, ++flips) {
      (*contents)[bit / 8] ^= static_cast<char>(1 << (bit % 8));
      const absl::Status status = ReadAll(fs);
      if (!absl::IsDataLoss(status) || !absl::StrContains(status.message(), path)) {
        ADD_FAILURE() << "bit " << bit << " of " << path << ": " << status;
        return;
      }
      (*contents)[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    }
  }
  EXPECT_GT(flips, 8 * 3000);
  EXPECT_THAT(ReadAll(fs), IsOk());
}

TEST(CorruptionTest, TheMessageNamesTensorAndByteRange) {
  MemoryFileSystem fs;
  Save(fs, 2, /*rows=*/1000, /*world_size=*/1);
  const auto reader = CheckpointReader::Open(fs, kDirectory);
  ASSERT_THAT(reader, IsOk());
  const Piece& piece = FindTensor(reader->manifest(), "decoder.weight")->pieces[0];
  (*fs.MutableContents(ShardPath(0, 1)))[static_cast<size_t>(piece.offset) + 5000] ^= 1;
  EXPECT_THAT(ReadAll(fs), StatusIs(absl::StatusCode::kDataLoss,
                                    AllOf(HasSubstr(ShardPath(0, 1)), HasSubstr("'decoder.weight'"),
                                          HasSubstr(absl::StrCat("[", piece.offset + 4096, ", ",
                                                                 piece.offset + 8192, ")")))));
}

TEST(CorruptionTest, VerifyFindsEveryDamagedPiece) {
  MemoryFileSystem fs;
  Save(fs, 2, /*rows=*/1000, /*world_size=*/2);
  for (int shard : {0, 1}) {
    std::string* const contents = fs.MutableContents(ShardPath(shard, 2));
    contents->back() ^= 1;
  }
  EXPECT_EQ(CheckpointReader::Open(fs, kDirectory)->Verify().size(), 2u);
}

// One fault of a random kind; false where it happened to change nothing.
bool Damage(MemoryFileSystem& fs, const std::string& stale_shard, std::mt19937* random) {
  const int shard = static_cast<int>((*random)() % 4);
  const std::string path = ShardPath(shard, 4);
  std::string* const contents = fs.MutableContents(path);
  const std::string before = *contents;
  const size_t at = (*random)() % contents->size();
  switch ((*random)() % 8) {
    case 0:
      (*contents)[at] ^= static_cast<char>(1 << ((*random)() % 8));
      return true;
    case 1:
      contents->resize(at);
      return true;
    case 2:
      contents->append(1 + (*random)() % 5000, '\0');
      return true;
    case 3:
      for (size_t i = at / 4096 * 4096; i < contents->size() && i / 4096 == at / 4096; ++i) {
        (*contents)[i] = '\0';
      }
      return *contents != before;
    case 4:
      std::swap(*contents, *fs.MutableContents(ShardPath((shard + 1) % 4, 4)));
      return true;
    case 5:
      EXPECT_THAT(fs.Remove(path), IsOk());
      return true;
    case 6:
      EXPECT_THAT(WriteFileAtomically(fs, ShardPath(5, 6), before), IsOk());
      return true;
    default:
      *contents = stale_shard;
      return true;
  }
}

TEST(CorruptionTest, RandomDamageToALargerCheckpointIsFound) {
  MemoryFileSystem fs;
  Save(fs, 1, /*rows=*/40000, /*world_size=*/4);
  const std::string stale = *ReadFileToString(fs, "/save/iter_0000001/shard_00000_of_00004.bin");
  ASSERT_THAT(fs.RemoveTree("/save"), IsOk());
  Save(fs, 2, /*rows=*/40000, /*world_size=*/4);
  const auto sound = fs.CrashImage(fs.operation_count(), CrashModel::kKillProcess, 0);
  std::vector<std::string> files;
  for (int i = 0; i < 4; ++i) files.push_back(*ReadFileToString(*sound, ShardPath(i, 4)));

  std::mt19937 random(1);
  int damaged = 0;
  for (int trial = 0; trial < 200; ++trial) {
    if (Damage(fs, stale, &random)) {
      ++damaged;
      EXPECT_THAT(ReadAll(fs), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(kDirectory)))
          << trial;
    }
    for (int i = 0; i < 4; ++i) {
      ASSERT_THAT(WriteFileAtomically(fs, ShardPath(i, 4), files[static_cast<size_t>(i)]), IsOk());
    }
    fs.Remove(ShardPath(5, 6)).IgnoreError();
  }
  EXPECT_GT(damaged, 150);
  EXPECT_THAT(ReadAll(fs), IsOk());
}

TEST(CorruptionTest, AShardOfAnEarlierSaveIsToldFromThisOnes) {
  MemoryFileSystem fs;
  Save(fs, 1, /*rows=*/6, /*world_size=*/2);
  Save(fs, 2, /*rows=*/6, /*world_size=*/2);
  const std::string stale = *ReadFileToString(fs, "/save/iter_0000001/shard_00001_of_00002.bin");
  *fs.MutableContents(ShardPath(1, 2)) = stale;
  EXPECT_THAT(CheckpointReader::Open(fs, kDirectory),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr(ShardPath(1, 2)), HasSubstr("iteration 1 "),
                             HasSubstr("iteration 2 "))));
}

}  // namespace
}  // namespace megatron
