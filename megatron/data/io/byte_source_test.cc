#include "megatron/data/io/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

std::string ReadAll(ByteSource& source, size_t piece) {
  std::string all, buffer(piece, '\0');
  while (true) {
    const absl::StatusOr<size_t> count = source.Read(absl::MakeSpan(buffer));
    EXPECT_THAT(count, IsOk());
    if (!count.ok() || *count == 0) return all;
    all.append(buffer, 0, *count);
  }
}

const std::atomic<bool> kNever{false};

TEST(ByteSourceTest, AMemorySourceGivesPiecesOfTheGivenSize) {
  const std::unique_ptr<ByteSource> source = MakeMemorySource("hello", 2);
  std::string buffer(4, '\0');
  EXPECT_THAT(source->Read(absl::MakeSpan(buffer)), IsOkAndHolds(2u));
  EXPECT_EQ(source->stored_bytes_read(), 2);
  EXPECT_EQ(ReadAll(*source, 100), "llo");
  EXPECT_THAT(source->Read(absl::MakeSpan(buffer)), IsOkAndHolds(0u));
}

TEST(ByteSourceTest, AFileIsReadToItsEnd) {
  const std::string path = testing::TempDir() + "/byte_source_file";
  const std::string contents(100000, 'z');
  std::ofstream(path) << contents;
  const auto source = OpenByteSource(path, &kNever);
  ASSERT_THAT(source, IsOk());
  EXPECT_EQ(ReadAll(**source, 4096), contents);
  EXPECT_EQ((*source)->stored_bytes_read(), 100000);
}

TEST(ByteSourceTest, MissingFilesAndDirectoriesAreErrors) {
  EXPECT_THAT(OpenByteSource("/nowhere/x", &kNever),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'/nowhere/x'")));
  EXPECT_THAT(OpenByteSource(testing::TempDir(), &kNever),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("directory")));
}

class PipeTest : public testing::Test {
 protected:
  PipeTest() : path_(absl::StrCat(testing::TempDir(), "/byte_source_pipe_", getpid())) {
    unlink(path_.c_str());
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
  }
  ~PipeTest() override { unlink(path_.c_str()); }

  const std::string path_;
};

TEST_F(PipeTest, ReadsWaitForAPipeAndReachItsEnd) {
  const auto source = OpenByteSource(path_, &kNever);
  ASSERT_THAT(source, IsOk());
  std::thread writer([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    std::ofstream pipe(path_);
    pipe << "hello" << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    pipe << " pipe";
  });
  EXPECT_EQ(ReadAll(**source, 4096), "hello pipe");
  writer.join();
}

TEST_F(PipeTest, AReadThatWaitsCanBeStopped) {
  std::atomic<bool> stop{false};
  const auto source = OpenByteSource(path_, &stop);
  ASSERT_THAT(source, IsOk());
  std::thread stopper([&stop] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop = true;
  });
  std::string buffer(10, '\0');
  EXPECT_THAT((*source)->Read(absl::MakeSpan(buffer)), StatusIs(absl::StatusCode::kCancelled));
  stopper.join();
}

}  // namespace
}  // namespace megatron
