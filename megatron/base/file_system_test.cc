#include "megatron/base/file_system.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PosixFileSystemTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    root_ = JoinPath(::testing::TempDir(), name);
    ASSERT_THAT(fs_.RemoveTree(root_), IsOk());
    ASSERT_THAT(fs_.CreateDirs(root_), IsOk());
  }
  void TearDown() override { EXPECT_THAT(fs_.RemoveTree(root_), IsOk()); }

  std::string Path(const std::string& name) const { return JoinPath(root_, name); }

  FileSystem& fs_ = PosixFileSystem();
  std::string root_;
};

TEST_F(PosixFileSystemTest, AppendedDataIsReadBack) {
  auto file = fs_.Create(Path("a"));
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT((*file)->Append("one "), IsOk());
  EXPECT_THAT((*file)->Append("two"), IsOk());
  EXPECT_THAT((*file)->Sync(), IsOk());
  EXPECT_THAT((*file)->Close(), IsOk());
  EXPECT_THAT(ReadFileToString(fs_, Path("a")), IsOkAndHolds("one two"));

  auto reader = fs_.Open(Path("a"));
  ASSERT_THAT(reader, IsOk());
  EXPECT_EQ((*reader)->size(), 7);
  std::string piece(3, '\0');
  EXPECT_THAT((*reader)->ReadAt(4, absl::MakeSpan(piece)), IsOk());
  EXPECT_EQ(piece, "two");
  EXPECT_THAT((*reader)->ReadAt(5, absl::MakeSpan(piece)),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr(Path("a"))));
}

TEST_F(PosixFileSystemTest, ErrorsNameTheOperationThePathAndTheSystemsText) {
  EXPECT_THAT(fs_.Open(Path("none")), StatusIs(absl::StatusCode::kNotFound,
                                               AllOf(HasSubstr("open '"), HasSubstr(Path("none")),
                                                     HasSubstr("No such file or directory"))));
  EXPECT_THAT(
      fs_.Rename(Path("none"), Path("b")),
      StatusIs(absl::StatusCode::kNotFound,
               AllOf(HasSubstr("rename '"), HasSubstr(Path("none")), HasSubstr(Path("b")))));
}

TEST_F(PosixFileSystemTest, CreateDirsMakesParentsAndMayBeRepeated) {
  EXPECT_THAT(fs_.CreateDirs(Path("x/y/z")), IsOk());
  EXPECT_THAT(fs_.CreateDirs(Path("x/y/z")), IsOk());
  ASSERT_THAT(WriteFileAtomically(fs_, Path("file"), ""), IsOk());
  EXPECT_FALSE(fs_.CreateDirs(Path("file")).ok());
  EXPECT_FALSE(fs_.CreateDirs(Path("file/below")).ok());
}

TEST_F(PosixFileSystemTest, ListsNamesInAscendingOrder) {
  for (const char* name : {"b", "c", "a"}) {
    ASSERT_THAT(WriteFileAtomically(fs_, Path(name), name), IsOk());
  }
  EXPECT_THAT(fs_.List(root_), IsOkAndHolds(ElementsAre("a", "b", "c")));
}

TEST_F(PosixFileSystemTest, WriteFileAtomicallyReplacesOnlyRegularFiles) {
  ASSERT_THAT(WriteFileAtomically(fs_, Path("target"), "old"), IsOk());
  ASSERT_EQ(symlink("target", Path("link").c_str()), 0);
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "pipe"}) {
    EXPECT_THAT(WriteFileAtomically(fs_, Path(name), "new"),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(name)));
    EXPECT_NE(fs_.Stat(Path(name))->type, FileType::kRegular);
  }
  EXPECT_THAT(ReadFileToString(fs_, Path("target")), IsOkAndHolds("old"));
  EXPECT_THAT(WriteFileAtomically(fs_, "", "new"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(PosixFileSystemTest, WriteFileAtomicallyLeavesNoTemporaryFile) {
  EXPECT_THAT(WriteFileAtomically(fs_, Path("a"), "old"), IsOk());
  EXPECT_THAT(WriteFileAtomically(fs_, Path("a"), "new"), IsOk());
  EXPECT_THAT(ReadFileToString(fs_, Path("a")), IsOkAndHolds("new"));
  EXPECT_THAT(fs_.List(root_), IsOkAndHolds(ElementsAre("a")));
}

TEST_F(PosixFileSystemTest, ReadFileToStringRefusesAFileOverTheLimit) {
  ASSERT_THAT(WriteFileAtomically(fs_, Path("a"), "12345"), IsOk());
  EXPECT_THAT(ReadFileToString(fs_, Path("a"), 5), IsOkAndHolds("12345"));
  EXPECT_THAT(ReadFileToString(fs_, Path("a"), 4), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(PosixFileSystemTest, OpenRefusesDirectoriesPipesAndDevicesWithoutWaiting) {
  EXPECT_THAT(fs_.Open(root_), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(fs_.Open(Path("fifo")), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(fs_.Open("/dev/zero"), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(PosixFileSystemTest, OnlyOpenNoFollowRefusesALink) {
  ASSERT_THAT(WriteFileAtomically(fs_, Path("target"), "text"), IsOk());
  ASSERT_EQ(symlink("target", Path("link").c_str()), 0);
  EXPECT_THAT(fs_.Open(Path("link")), IsOk());
  EXPECT_FALSE(fs_.OpenNoFollow(Path("link")).ok());
  auto info = fs_.Stat(Path("link"));
  ASSERT_THAT(info, IsOk());
  EXPECT_EQ(info->type, FileType::kSymbolicLink);
}

TEST_F(PosixFileSystemTest, RemoveTreeFollowsNoLink) {
  ASSERT_THAT(fs_.CreateDirs(Path("kept")), IsOk());
  ASSERT_THAT(WriteFileAtomically(fs_, Path("kept/file"), "text"), IsOk());
  ASSERT_THAT(fs_.CreateDirs(Path("gone/deeper")), IsOk());
  ASSERT_THAT(WriteFileAtomically(fs_, Path("gone/deeper/file"), "text"), IsOk());
  ASSERT_EQ(symlink("../kept", Path("gone/link").c_str()), 0);
  EXPECT_THAT(fs_.RemoveTree(Path("gone")), IsOk());
  EXPECT_THAT(fs_.List(root_), IsOkAndHolds(ElementsAre("kept")));
  EXPECT_THAT(ReadFileToString(fs_, Path("kept/file")), IsOkAndHolds("text"));

  ASSERT_EQ(symlink("kept", Path("link").c_str()), 0);
  EXPECT_FALSE(fs_.RemoveTree(Path("link")).ok());
  EXPECT_THAT(fs_.RemoveTree(Path("absent")), IsOk());
}

TEST_F(PosixFileSystemTest, FreeBytesIsPositiveInAWritableDirectory) {
  auto free = fs_.FreeBytes(root_);
  ASSERT_THAT(free, IsOk());
  EXPECT_GT(*free, 0);
}

TEST_F(PosixFileSystemTest, WritingToAFullDeviceIsResourceExhausted) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "this machine has no /dev/full";
  auto file = fs_.Create("/dev/full");
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT((*file)->Append("x"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("No space left")));
}

TEST(PathTest, JoinPathAddsOneSlashAndParentPathDropsTheLastName) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
  EXPECT_EQ(ParentPath("a/b"), "a");
  EXPECT_EQ(ParentPath("a/b/"), "a");
  EXPECT_EQ(ParentPath("/a"), "/");
  EXPECT_EQ(ParentPath("a"), ".");
}

}  // namespace
}  // namespace megatron
