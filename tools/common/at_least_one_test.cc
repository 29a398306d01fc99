#include "tools/common/at_least_one.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

TEST(AtLeastOneTest, TheErrorNamesTheFlagThatIsWrong) {
  EXPECT_THAT(CheckAtLeastOne({{"max_batch", 1}, {"max_queue", 256}}), IsOk());
  EXPECT_THAT(
      CheckAtLeastOne({{"max_batch", 1}, {"max_queue", 0}, {"ranks", -1}}),
      StatusIs(absl::StatusCode::kInvalidArgument, "--max_queue is 0; it must be at least 1"));
}

}  // namespace
}  // namespace megatron
