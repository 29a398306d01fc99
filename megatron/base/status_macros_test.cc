#include "megatron/base/status_macros.h"

#include <memory>
#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/cord.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;

absl::Status Fail() {
  absl::Status status = absl::NotFoundError("no such file");
  status.SetPayload("url", absl::Cord("payload"));
  return status;
}

TEST(StatusMacrosTest, ReturnIfErrorReturnsOnlyOnError) {
  int reached = 0;
  auto run = [&](const absl::Status& status) -> absl::Status {
    MEGATRON_RETURN_IF_ERROR(status);
    ++reached;
    return absl::OkStatus();
  };
  EXPECT_THAT(run(Fail()), StatusIs(absl::StatusCode::kNotFound, "no such file"));
  EXPECT_EQ(reached, 0);
  EXPECT_TRUE(run(absl::OkStatus()).ok());
  EXPECT_EQ(reached, 1);
}

TEST(StatusMacrosTest, ContextIsAppendedOrPrependedAndPayloadsAreKept) {
  auto append = [](int rank) -> absl::Status {
    MEGATRON_RETURN_IF_ERROR(Fail(), _ << "on rank " << rank);
    return absl::OkStatus();
  };
  auto prepend = []() -> absl::StatusOr<int> {
    MEGATRON_RETURN_IF_ERROR(Fail(), _.SetPrepend() << "loading: ");
    return 1;
  };
  EXPECT_THAT(append(3), StatusIs(absl::StatusCode::kNotFound, "no such file; on rank 3"));
  EXPECT_EQ(append(3).GetPayload("url"), absl::Cord("payload"));
  EXPECT_THAT(prepend(), StatusIs(absl::StatusCode::kNotFound, "loading: no such file"));
}

TEST(StatusMacrosTest, AssignOrReturnAcceptsMoveOnlyValues) {
  auto make = [](bool ok) -> absl::StatusOr<std::unique_ptr<int>> {
    if (!ok) return Fail();
    return std::make_unique<int>(7);
  };
  auto use = [&](bool ok) -> absl::StatusOr<int> {
    MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<int> value, make(ok));
    MEGATRON_ASSIGN_OR_RETURN(auto other, make(ok), _ << "second");
    return *value + *other;
  };
  EXPECT_THAT(use(true), IsOkAndHolds(14));
  EXPECT_THAT(use(false), StatusIs(absl::StatusCode::kNotFound));
}

TEST(StatusMacrosTest, ElseBelongsToTheCallersIf) {
  auto run = [](bool check) -> absl::Status {
    if (check)
      MEGATRON_RETURN_IF_ERROR(Fail());
    else
      return absl::CancelledError("else");
    return absl::OkStatus();
  };
  EXPECT_THAT(run(true), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(run(false), StatusIs(absl::StatusCode::kCancelled));
}

}  // namespace
}  // namespace megatron
