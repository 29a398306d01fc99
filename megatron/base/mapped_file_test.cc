#include "megatron/base/mapped_file.h"

#include <sys/stat.h>

#include <fstream>
#include <string>
#include <utility>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

std::string TempFile(const std::string& name, const std::string& contents) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << contents;
  return path;
}

TEST(MappedFileTest, DataHoldsTheFilesBytes) {
  const std::string contents("one\0two", 7);
  absl::StatusOr<MappedFile> file = MappedFile::Open(TempFile("bytes", contents));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->data(), contents);
}

TEST(MappedFileTest, AnEmptyFileGivesEmptyData) {
  absl::StatusOr<MappedFile> file = MappedFile::Open(TempFile("empty", ""));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->data(), "");
}

TEST(MappedFileTest, DataKeepsItsAddressWhenTheObjectIsMoved) {
  absl::StatusOr<MappedFile> first = MappedFile::Open(TempFile("first", "first"));
  absl::StatusOr<MappedFile> second = MappedFile::Open(TempFile("second", "second"));
  ASSERT_TRUE(first.ok() && second.ok());
  const char* data = second->data().data();
  *first = *std::move(second);
  EXPECT_EQ(first->data(), "second");
  EXPECT_EQ(first->data().data(), data);
  const MappedFile third = *std::move(first);
  EXPECT_EQ(third.data(), "second");
}

TEST(MappedFileTest, ForgottenPagesAreReadAgain) {
  std::string contents(100000, 'x');
  contents[50000] = 'y';
  const absl::StatusOr<MappedFile> file = MappedFile::Open(TempFile("forgotten", contents));
  ASSERT_TRUE(file.ok()) << file.status();
  file->Forget(file->data().substr(49000, 3000));
  file->Forget(file->data());
  file->Forget(file->data().substr(7, 0));
  EXPECT_TRUE(file->data() == contents);
}

TEST(MappedFileTest, TheErrorNamesAMissingFile) {
  EXPECT_THAT(MappedFile::Open("/nowhere/file"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'/nowhere/file'")));
}

TEST(MappedFileTest, PipesAndDirectoriesAreRefusedAtOnce) {
  EXPECT_THAT(MappedFile::Open(testing::TempDir()), StatusIs(absl::StatusCode::kInvalidArgument));
  const std::string fifo = testing::TempDir() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(MappedFile::Open(fifo), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace megatron
