#include "megatron/base/fault_file_system.h"

#include <cerrno>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

TEST(FaultFileSystemTest, AnAtomicWriteKeepsTheOldContentsWhicheverOperationFails) {
  MemoryFileSystem base;
  FaultFileSystem fs(&base);
  ASSERT_THAT(WriteFileAtomically(fs, "/file", "old"), IsOk());
  const int operations = fs.operation_count();
  ASSERT_EQ(operations, 7);  // stat, create, write, fsync, close, rename, fsync directory
  for (int n = 0; n < operations; ++n) {
    fs.FailAt(n, EIO, /*lasting=*/false);
    EXPECT_THAT(WriteFileAtomically(fs, "/file", "new!"), StatusIs(absl::StatusCode::kUnknown))
        << n;
    EXPECT_TRUE(fs.has_failed());
    const bool renamed = n == operations - 1;
    EXPECT_THAT(ReadFileToString(base, "/file"), IsOkAndHolds(renamed ? "new!" : "old")) << n;
    EXPECT_THAT(base.Stat("/file.tmp"), StatusIs(absl::StatusCode::kNotFound)) << n;
  }
}

TEST(FaultFileSystemTest, AFailingAppendWritesHalfOfItsData) {
  MemoryFileSystem base;
  FaultFileSystem fs(&base);
  fs.FailAt(1, ENOSPC, /*lasting=*/true);
  auto file = fs.Create("/file");
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT((*file)->Append("12345678"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("write '/file'")));
  EXPECT_THAT(ReadFileToString(base, "/file"), IsOkAndHolds("1234"));
}

TEST(FaultFileSystemTest, ALastingFaultFailsWritesButNotReadsAndRemovals) {
  MemoryFileSystem base;
  FaultFileSystem fs(&base);
  ASSERT_THAT(WriteFileAtomically(fs, "/file", "text"), IsOk());
  fs.FailAt(0, ENOSPC, /*lasting=*/true);
  EXPECT_FALSE(fs.Create("/a").ok());
  EXPECT_FALSE(fs.CreateDirs("/b").ok());
  EXPECT_THAT(ReadFileToString(fs, "/file"), IsOkAndHolds("text"));
  EXPECT_THAT(fs.Remove("/file"), IsOk());
  fs.ClearFault();
  EXPECT_THAT(fs.Create("/a"), IsOk());
}

}  // namespace
}  // namespace megatron
