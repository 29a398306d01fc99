#include "megatron/train/failure/exit_status.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

TEST(ExitStatusTest, AnErrorMeansTheCodeOfItsKind) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), kExitDone);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), kExitConfig);
  EXPECT_EQ(ExitCodeOf(absl::DataLossError("")), kExitData);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), kExitPeerLost);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("")), kExitHang);
  EXPECT_EQ(ExitCodeOf(absl::CancelledError("")), kExitInterrupted);
  EXPECT_EQ(ExitCodeOf(absl::ResourceExhaustedError("")), kExitIo);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), kExitIo);
}

TEST(ExitStatusTest, TheCodeThatAnErrorCarriesCounts) {
  const absl::Status status = WithExitCode(absl::DataLossError("torn"), kExitCorruptCheckpoint);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "torn");
  EXPECT_TRUE(HasExitCode(status));
  EXPECT_EQ(ExitCodeOf(status), kExitCorruptCheckpoint);
  EXPECT_EQ(ExitCodeOf(WithExitCode(status, kExitIo)), kExitIo);
  EXPECT_FALSE(HasExitCode(absl::DataLossError("torn")));
}

TEST(ExitStatusTest, SuccessCarriesNoCode) {
  const absl::Status status = WithExitCode(absl::OkStatus(), kExitIo);
  EXPECT_TRUE(status.ok());
  EXPECT_FALSE(HasExitCode(status));
  EXPECT_EQ(ExitCodeOf(WithExitCodeOfRank(absl::OkStatus(), kExitIo)), kExitDone);
}

TEST(ExitStatusTest, ErrorsOfOtherRanksTakePrecedence) {
  EXPECT_EQ(ExitCodeOf(WithExitCodeOfRank(absl::UnavailableError(""), kExitData)), kExitPeerLost);
  EXPECT_EQ(ExitCodeOf(WithExitCodeOfRank(absl::AbortedError(""), kExitData)), kExitPeerLost);
  EXPECT_EQ(ExitCodeOf(WithExitCodeOfRank(absl::DeadlineExceededError(""), kExitData)), kExitHang);
  EXPECT_EQ(ExitCodeOf(WithExitCodeOfRank(absl::NotFoundError(""), kExitData)), kExitData);
}

TEST(ExitStatusTest, TheCodeStaysWhenTextIsAdded) {
  const auto function = []() -> absl::Status {
    MEGATRON_RETURN_IF_ERROR(WithExitCode(absl::NotFoundError("no file"), kExitData),
                             _ << "while reading");
    return absl::OkStatus();
  };
  EXPECT_EQ(ExitCodeOf(function()), kExitData);
}

}  // namespace
}  // namespace megatron
