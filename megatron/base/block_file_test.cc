#include "megatron/base/block_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/scripted_engine.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int64_t kPage = BlockFile::kAlignment;

// Memory that begins at a page.
class Pages {
 public:
  explicit Pages(int64_t bytes) : bytes_(bytes) {
    CHECK_EQ(posix_memalign(reinterpret_cast<void**>(&data_), kPage, bytes), 0);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { std::free(data_); }

  // Fills bytes with what depends on the seed and the place.
  Pages& Fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int64_t i = 0; i < bytes_; i += 8) *reinterpret_cast<uint64_t*>(data_ + i) = random();
    return *this;
  }
  absl::Span<char> span() const { return {data_, static_cast<size_t>(bytes_)}; }

 private:
  char* data_ = nullptr;
  const int64_t bytes_;
};

std::string TestPath(const std::string& name) { return absl::StrCat(testing::TempDir(), name); }

class BlockFileTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Engines, BlockFileTest, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Uring" : "Threads"; });

TEST_P(BlockFileTest, WhatWasWrittenIsRead) {
  constexpr int64_t kBytes = 1003 * kPage;
  BlockFileOptions options;
  options.block_bytes = 16 * kPage;
  options.blocks_at_once = 8;
  options.may_use_uring = GetParam();
  const auto file = BlockFile::Create(TestPath("round_trip"), kBytes, options);
  ASSERT_THAT(file, IsOk());
  if (!GetParam()) {
    EXPECT_THAT((*file)->method(), HasSubstr("threads"));
  }
  Pages written(kBytes), read(kBytes);
  written.Fill(1);
  read.Fill(2);
  // Many transfers are on their way at once, of which none is a multiple of a block.
  std::vector<int64_t> transfers;
  for (int64_t at = 0; at < kBytes; at += 59 * kPage)
    transfers.push_back((*file)->StartWrite(at, written.span().subspan(at, 59 * kPage)));
  for (const int64_t transfer : transfers) ASSERT_THAT((*file)->Finish(transfer), IsOk());
  const int64_t back = (*file)->StartRead(5 * kPage, read.span().subspan(5 * kPage, 900 * kPage));
  ASSERT_THAT((*file)->Finish(back), IsOk());
  EXPECT_EQ(read.span().subspan(5 * kPage, 900 * kPage),
            written.span().subspan(5 * kPage, 900 * kPage));
}

TEST_P(BlockFileTest, TheFileHasNoName) {
  BlockFileOptions options;
  options.may_use_uring = GetParam();
  const std::string path = TestPath("nameless");
  const auto file = BlockFile::Create(path, kPage, options);
  ASSERT_THAT(file, IsOk());
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  EXPECT_EQ((*file)->path(), path);
}

TEST_P(BlockFileTest, ADestroyedFileWaitsForItsTransfers) {
  constexpr int64_t kBytes = 256 * kPage;
  BlockFileOptions options;
  options.block_bytes = kPage;
  options.may_use_uring = GetParam();
  Pages pages(kBytes);
  pages.Fill(3);
  auto file = BlockFile::Create(TestPath("destroyed"), kBytes, options);
  ASSERT_THAT(file, IsOk());
  (*file)->StartWrite(0, pages.span());
}

TEST(BlockFileErrorTest, CreatingNamesTheFile) {
  EXPECT_THAT(BlockFile::Create("/nowhere/at/all", kPage, {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("create '/nowhere/at/all'")));
  const std::string path = TestPath("there_already");
  close(open(path.c_str(), O_CREAT | O_RDWR, 0600));
  EXPECT_THAT(BlockFile::Create(path, kPage, {}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(path)));
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
  unlink(path.c_str());
}

// As on ext3. The file is larger than what is written at once, and no multiple of it.
TEST(BlockFileSpaceTest, WithoutFallocateZerosTakeTheSpace) {
  constexpr int64_t kBytes = 600 * kPage;
  BlockFileOptions options;
  options.may_fallocate = false;
  const auto file = BlockFile::Create(TestPath("zeros"), kBytes, options);
  ASSERT_THAT(file, IsOk());
  Pages read(kBytes);
  read.Fill(3);
  EXPECT_THAT((*file)->Finish((*file)->StartRead(0, read.span())), IsOk());
  const absl::Span<char> got = read.span();
  EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](char byte) { return byte == 0; }));
}

TEST(BlockFileErrorTest, SpaceThatIsNotThereIsToldBeforeAnythingIsWritten) {
  const std::string path = TestPath("too_large");
  EXPECT_THAT(BlockFile::Create(path, int64_t{1} << 60, {}),
              StatusIs(AnyOf(absl::StatusCode::kResourceExhausted,
                             absl::StatusCode::kInvalidArgument, absl::StatusCode::kOutOfRange),
                       HasSubstr("take 1152921504606846976 bytes for")));
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST(BlockFileErrorTest, ALimitOfTheLengthOfFilesIsNamed) {
  const auto on_signal = signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit during = before;
  during.rlim_cur = 2 * kPage;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &during), 0);
  absl::Status longer[2], as_long;
  for (const bool may_fallocate : {false, true}) {
    BlockFileOptions options;
    options.may_fallocate = may_fallocate;
    longer[may_fallocate] = BlockFile::Create(TestPath("limited"), 3 * kPage, options).status();
  }
  as_long = BlockFile::Create(TestPath("limited"), 2 * kPage, {}).status();
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, on_signal);
  for (const absl::Status& status : longer) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kOutOfRange,
                                 AllOf(HasSubstr("take 12288 bytes for '"),
                                       HasSubstr("limited' (ulimit -f allows 8192): "))));
  }
  EXPECT_THAT(as_long, IsOk());
}

TEST(BlockFileErrorTest, AFailedBlockIsNamedAndTheOthersAreMoved) {
  constexpr int64_t kBytes = 32 * kPage;
  const auto file = ScriptedBlockFile(TestPath("failing"), kBytes, kPage, [](const Block& block) {
    return block.offset == 9 * kPage ? -EIO : block.bytes;
  });
  Pages written(kBytes), read(kBytes);
  written.Fill(4);
  const int64_t bad = file->StartWrite(8 * kPage, written.span().subspan(0, 4 * kPage));
  const int64_t good = file->StartWrite(20 * kPage, written.span().subspan(0, 12 * kPage));
  EXPECT_THAT(file->Finish(bad), StatusIs(testing::_, AllOf(HasSubstr("write '" + file->path()),
                                                            HasSubstr("at 36864: "))));
  EXPECT_THAT(file->Finish(good), IsOk());
  EXPECT_THAT(file->Finish(file->StartRead(20 * kPage, read.span().subspan(0, 12 * kPage))),
              IsOk());
  EXPECT_EQ(read.span().subspan(0, 12 * kPage), written.span().subspan(0, 12 * kPage));
}

TEST(BlockFileErrorTest, PartsOfBlocksAndInterruptionsAreAskedForAgain) {
  constexpr int64_t kBytes = 64 * kPage;
  int calls = 0;
  const auto file = ScriptedBlockFile(
      TestPath("torn"), kBytes, 8 * kPage, [&calls](const Block& block) -> int64_t {
        switch (++calls % 4) {
          case 0:
            return -EINTR;
          case 1:
            return -EAGAIN;
          case 2:
            return std::min(block.bytes, 2 * kPage + 17);  // a page that is torn is moved again
          default:
            return block.bytes;
        }
      });
  Pages written(kBytes), read(kBytes);
  written.Fill(5);
  ASSERT_THAT(file->Finish(file->StartWrite(0, written.span())), IsOk());
  ASSERT_THAT(file->Finish(file->StartRead(0, read.span())), IsOk());
  EXPECT_EQ(read.span(), written.span());
  EXPECT_GT(calls, 16);
}

TEST(BlockFileErrorTest, AFileThatBecameShorterIsDataLoss) {
  const std::string path = TestPath("shortened");
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, 5 * kPage + 100), 0);
  BlockFile file(path, fd, 8 * kPage, MakeThreadEngine(fd, 2), {});
  Pages read(8 * kPage);
  EXPECT_THAT(file.Finish(file.StartRead(0, read.span())),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("' at 20480: the file ends there")));
  unlink(path.c_str());
}

// A thousand faults of all kinds: a transfer either moved its bytes, or says that it did not.
TEST(BlockFileErrorTest, NothingIsLostInSilence) {
  constexpr int64_t kPages = 64;
  std::mt19937 random(6);
  int faults = 0;
  const auto file = ScriptedBlockFile(TestPath("faults"), kPages * kPage, 2 * kPage,
                                      [&](const Block& block) -> int64_t {
                                        switch (random() % 8) {
                                          case 0:
                                            ++faults;
                                            return -EIO;
                                          case 1:
                                            ++faults;
                                            return block.is_write ? -ENOSPC : 0;
                                          case 2:
                                            ++faults;
                                            return -EINTR;
                                          case 3:
                                            ++faults;
                                            return 1 + static_cast<int64_t>(random() % block.bytes);
                                          default:
                                            return block.bytes;
                                        }
                                      });
  Pages memory(kPages * kPage), read(kPages * kPage);
  int failed = 0;
  for (uint64_t round = 0; faults < 1000; ++round) {
    const int64_t begin = random() % kPages, count = 1 + random() % (kPages - begin);
    const absl::Span<char> out = memory.Fill(round).span().subspan(0, count * kPage);
    const absl::Span<char> in = read.span().subspan(0, count * kPage);
    if (!file->Finish(file->StartWrite(begin * kPage, out)).ok() ||
        !file->Finish(file->StartRead(begin * kPage, in)).ok()) {
      ++failed;
      continue;
    }
    ASSERT_EQ(in, out) << "round " << round;
  }
  EXPECT_GT(failed, 0);
}

}  // namespace
}  // namespace megatron
