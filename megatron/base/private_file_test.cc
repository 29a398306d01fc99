#include "megatron/base/private_file.h"

#include <sys/stat.h>

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;

TEST(PrivateFileTest, OnlyItsOwnerMayReadIt) {
  const std::string path = JoinPath(::testing::TempDir(), "private_file");
  ASSERT_THAT(WriteFileAtomically(PosixFileSystem(), path, "secret"), ::absl_testing::IsOk());
  for (const mode_t mode : {0640, 0604, 0620}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_THAT(ReadPrivateFile(path, 10), StatusIs(absl::StatusCode::kPermissionDenied));
  }
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_THAT(ReadPrivateFile(path, 6), IsOkAndHolds("secret"));
  EXPECT_THAT(ReadPrivateFile(path, 5), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(ReadPrivateFile(path + "_none", 5), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace megatron
