#include "megatron/base/file_identity.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

TEST(FileIdentityTest, AFileKeepsItsOwnUnderAnotherName) {
  FileSystem& fs = PosixFileSystem();
  const std::string directory = JoinPath(::testing::TempDir(), "file_identity_test");
  ASSERT_THAT(fs.RemoveTree(directory), IsOk());
  ASSERT_THAT(fs.CreateDirs(directory), IsOk());
  const std::string a = JoinPath(directory, "a"), b = JoinPath(directory, "b");
  EXPECT_FALSE(IdentityOf(a).has_value());
  ASSERT_THAT(fs.Create(a), IsOk());
  const auto first = IdentityOf(a);
  ASSERT_TRUE(first.has_value());
  const int descriptor = open(a.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  ASSERT_THAT(fs.Create(b), IsOk());
  EXPECT_TRUE(IdentityOf(b) != first);
  ASSERT_THAT(fs.Rename(b, a), IsOk());
  EXPECT_TRUE(IdentityOf(descriptor) == first);
  EXPECT_TRUE(IdentityOf(a) != first);
  ASSERT_THAT(fs.Rename(a, b), IsOk());
  EXPECT_FALSE(IdentityOf(a).has_value());
  EXPECT_TRUE(IdentityOf(b) != first);
  close(descriptor);
  EXPECT_FALSE(IdentityOf(descriptor).has_value());
}

}  // namespace
}  // namespace megatron
