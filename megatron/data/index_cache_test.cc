#include "megatron/data/index_cache.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/fault_file_system.h"
#include "megatron/base/file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

IndexArrays Arrays(int32_t begin, int32_t count) {
  auto numbers = std::make_shared<std::vector<int32_t>>();
  for (int32_t i = 0; i < count; ++i) numbers->push_back(begin + i);
  const absl::string_view bytes = ArrayBytes(absl::MakeConstSpan(*numbers));
  return {{{"<i4", {count}, bytes}, {"<i4", {count / 2, 2}, bytes}}, numbers};
}

class IndexCacheTest : public ::testing::Test {
 protected:
  IndexCacheTest()
      : directory_(absl::StrCat(::testing::TempDir(), "/",
                                ::testing::UnitTest::GetInstance()->current_test_info()->name(),
                                "/cache")),
        cache_(PosixFileSystem(), directory_) {
    key_ = {"Thing-train", "{a description}", {"first", "second"}};
  }

  // Returns the numbers of entry `key_` from `cache`; if it has to build them, they count up from
  // `begin`.
  std::vector<int32_t> Get(const IndexCache& cache, int32_t begin) {
    const absl::StatusOr<IndexArrays> arrays = cache.LoadOrBuild(
        key_, [](const IndexArrays& loaded) { return CheckArray(loaded.arrays[0], "<i4", {4}); },
        [&]() -> absl::StatusOr<IndexArrays> {
          ++builds_;
          return Arrays(begin, 4);
        });
    EXPECT_THAT(arrays, IsOk());
    const absl::Span<const int32_t> numbers = ArrayValues<int32_t>(arrays->arrays[0]);
    return {numbers.begin(), numbers.end()};
  }
  std::vector<int32_t> Get(int32_t begin) { return Get(cache_, begin); }

  void Overwrite(const std::string& name, const std::string& contents) {
    std::ofstream(cache_.PathOf(key_, name), std::ios::binary) << contents;
  }
  std::string Contents(const std::string& name) {
    return *ReadFileToString(PosixFileSystem(), cache_.PathOf(key_, name));
  }

  const std::string directory_;
  const IndexCache cache_;
  IndexCacheKey key_;
  int builds_ = 0;
};

TEST_F(IndexCacheTest, AnEntryIsBuiltOnceAndThenLoaded) {
  EXPECT_THAT(cache_.Load(key_), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Get(10), ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(Get(20), ElementsAre(10, 11, 12, 13));
  EXPECT_EQ(builds_, 1);
  EXPECT_THAT(cache_.Load(key_), IsOk());
}

TEST_F(IndexCacheTest, FilesAreNamedAsInMegatron) {
  Get(10);
  // The digest is the MD5 of the description.
  EXPECT_EQ(cache_.PathOf(key_, "first.npy"),
            directory_ + "/16a3bcca02a6c6835cb17da74c71062c-Thing-train-first.npy");
  EXPECT_EQ(Contents("description.txt"), key_.description);
  EXPECT_EQ(Contents("first.npy").size(), 128u + 16);
}

TEST_F(IndexCacheTest, DifferentDescriptionsAreDifferentEntries) {
  Get(10);
  key_.description = "{another}";
  EXPECT_THAT(Get(20), ElementsAre(20, 21, 22, 23));
  key_.description = "{a description}";
  EXPECT_THAT(Get(30), ElementsAre(10, 11, 12, 13));
}

TEST_F(IndexCacheTest, TornOrForeignEntriesAreBuiltAgain) {
  Get(10);
  const std::vector<std::string> names = {"first.npy", "second.npy", "description.txt",
                                          "checksums.txt"};
  int32_t begin = 10;
  for (const std::string& name : names) {
    const std::string good = Contents(name);
    std::string flipped = good;
    flipped.back() = static_cast<char>(flipped.back() ^ 1);
    for (const std::string& bad :
         {std::string(), good.substr(0, good.size() / 2), good + "x", flipped}) {
      Overwrite(name, bad);
      EXPECT_FALSE(cache_.Load(key_).ok()) << name;
      begin += 10;
      EXPECT_THAT(Get(begin), ElementsAre(begin, begin + 1, begin + 2, begin + 3)) << name;
      EXPECT_THAT(cache_.Load(key_), IsOk());
    }
    ASSERT_THAT(PosixFileSystem().Remove(cache_.PathOf(key_, name)), IsOk());
    begin += 10;
    EXPECT_THAT(Get(begin), ElementsAre(begin, begin + 1, begin + 2, begin + 3)) << name;
  }
}

TEST_F(IndexCacheTest, ACompleteEntryOfTheWrongShapeIsBuiltAgain) {
  ASSERT_THAT(cache_.Store(key_, Arrays(50, 6)), IsOk());
  EXPECT_THAT(Get(10), ElementsAre(10, 11, 12, 13));
}

TEST_F(IndexCacheTest, MappedArraysOutliveTheirFiles) {
  Get(10);
  const absl::StatusOr<IndexArrays> arrays = cache_.Load(key_);
  ASSERT_THAT(arrays, IsOk());
  ASSERT_THAT(cache_.Store(key_, Arrays(50, 4)), IsOk());
  ASSERT_THAT(PosixFileSystem().RemoveTree(directory_), IsOk());
  EXPECT_THAT(ArrayValues<int32_t>(arrays->arrays[0]), ElementsAre(10, 11, 12, 13));
}

TEST_F(IndexCacheTest, NothingIsKeptIfBuildingFails) {
  const auto failed = cache_.LoadOrBuild(
      key_, [](const IndexArrays&) { return absl::OkStatus(); },
      []() -> absl::StatusOr<IndexArrays> { return absl::InvalidArgumentError("too small"); });
  EXPECT_THAT(failed, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too small")));
  EXPECT_THAT(cache_.Load(key_), StatusIs(absl::StatusCode::kNotFound));
}

// Any operation may find the disk full, or find it read-only.
TEST_F(IndexCacheTest, ArraysStayInMemoryAndNoTornEntryIsLeftIfFilesCannotBeWritten) {
  FaultFileSystem faults(&PosixFileSystem());
  const IndexCache cache(faults, directory_);
  faults.ClearFault();
  Get(cache, 10);
  const int operations = faults.operation_count();
  ASSERT_GT(operations, 10);
  for (const int error : {ENOSPC, EROFS, EIO}) {
    for (int i = 0; i < operations; ++i) {
      ASSERT_THAT(PosixFileSystem().RemoveTree(directory_), IsOk());
      faults.FailAt(i, error, /*lasting=*/true);
      EXPECT_THAT(Get(cache, i), ElementsAre(i, i + 1, i + 2, i + 3));
      faults.ClearFault();
      const absl::StatusOr<IndexArrays> left = cache_.Load(key_);
      if (left.ok()) {
        EXPECT_EQ(ArrayValues<int32_t>(left->arrays[0])[0], i);
      } else {
        EXPECT_THAT(left, StatusIs(absl::StatusCode::kNotFound)) << "operation " << i;
      }
    }
  }
}

TEST_F(IndexCacheTest, AFolderThatCannotBeCreatedIsNoError) {
  const std::string file = ::testing::TempDir() + "/a_file";
  std::ofstream(file) << "x";
  const IndexCache cache(PosixFileSystem(), file + "/cache");
  EXPECT_THAT(Get(cache, 10), ElementsAre(10, 11, 12, 13));
}

TEST_F(IndexCacheTest, EntriesOfAFolderThatCannotBeLockedAreLoaded) {
  Get(10);
  ASSERT_THAT(PosixFileSystem().Remove(directory_ + "/.lock"), IsOk());
  ASSERT_THAT(PosixFileSystem().CreateDirs(directory_ + "/.lock"), IsOk());
  EXPECT_THAT(Get(20), ElementsAre(10, 11, 12, 13));
  EXPECT_EQ(builds_, 1);
  key_.description = "{another}";
  EXPECT_THAT(Get(20), ElementsAre(20, 21, 22, 23));
  EXPECT_THAT(cache_.Load(key_), StatusIs(absl::StatusCode::kNotFound));
}

// Runs `body` in a new process.
template <typename Body>
pid_t Fork(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  return child;
}

// Twelve megabytes take so long that the kill arrives during the work.
constexpr int32_t kLarge = 3000000;

absl::Status GetLarge(const IndexCache& cache, const IndexCacheKey& key,
                      const std::string& builds = "") {
  return cache
      .LoadOrBuild(
          key, [](const IndexArrays&) { return absl::OkStatus(); },
          [&]() -> absl::StatusOr<IndexArrays> {
            if (!builds.empty()) std::ofstream(builds, std::ios::app) << "x" << std::flush;
            return Arrays(7, kLarge);
          })
      .status();
}

TEST_F(IndexCacheTest, OnlyOneOfSeveralProcessesBuilds) {
  const std::string builds = ::testing::TempDir() + "/builds";
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    children.push_back(Fork([&] {
      if (!GetLarge(cache_, key_, builds).ok()) _exit(1);
    }));
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(*ReadFileToString(PosixFileSystem(), builds), "x");
}

TEST_F(IndexCacheTest, AKillAtAnyMomentLeavesACompleteEntryOrNone) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  int status = -1;
  waitpid(Fork([&] { GetLarge(cache_, key_).IgnoreError(); }), &status, 0);
  const double whole_run = std::chrono::duration<double>(Clock::now() - start).count();
  ASSERT_THAT(cache_.Load(key_), IsOk());
  constexpr uint32_t kSeed = 20;
  std::mt19937 random(kSeed);
  int absent = 0;
  for (int kill_number = 0; kill_number < 50; ++kill_number) {
    ASSERT_THAT(PosixFileSystem().Remove(cache_.PathOf(key_, "checksums.txt")),
                ::testing::AnyOf(IsOk(), StatusIs(absl::StatusCode::kNotFound)));
    const pid_t child = Fork([&] { GetLarge(cache_, key_).IgnoreError(); });
    std::this_thread::sleep_for(
        std::chrono::duration<double>(whole_run * 1.1 * random() / 4294967296.0));
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    const absl::StatusOr<IndexArrays> left = cache_.Load(key_);
    if (!left.ok()) {
      EXPECT_THAT(left, StatusIs(absl::StatusCode::kNotFound)) << "seed " << kSeed;
      ++absent;
      continue;
    }
    const absl::Span<const int32_t> numbers = ArrayValues<int32_t>(left->arrays[0]);
    ASSERT_EQ(numbers.size(), static_cast<size_t>(kLarge));
    for (int32_t i = 0; i < kLarge; ++i) ASSERT_EQ(numbers[i], 7 + i);
  }
  EXPECT_GT(absent, 0);
  EXPECT_THAT(GetLarge(cache_, key_), IsOk());
  EXPECT_THAT(cache_.Load(key_), IsOk());
}

}  // namespace
}  // namespace megatron
