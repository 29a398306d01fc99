#include "megatron/federated/federated_options.h"

#include <limits>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::HasSubstr;

FederatedOptions Some() {
  FederatedOptions options;
  options.clip_norm = 0.5;
  options.secure_sum_threshold = 3;
  options.noise_multiplier = 4;
  options.max_epsilon = 3.7;
  return options;
}

TEST(FederatedOptionsTest, NumbersOutOfRangeAreNamed) {
  EXPECT_THAT(CheckFederated(Some()), IsOk());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [](const FederatedOptions& options, const std::string& name) {
    EXPECT_THAT(CheckFederated(options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name + " is ")));
  };
  for (const double bad : {nan, -1.0, std::numeric_limits<double>::infinity()}) {
    FederatedOptions options = Some();
    options.clip_norm = bad;
    refused(options, "clip_norm");
    options = Some();
    options.noise_multiplier = bad;
    refused(options, "noise_multiplier");
    options = Some();
    options.delta = bad;
    refused(options, "delta");
    options = Some();
    options.max_epsilon = bad;
    refused(options, "max_epsilon");
  }
  for (const int bad : {-1, 0, 1, 256}) {
    FederatedOptions options = Some();
    options.secure_sum_threshold = bad;
    refused(options, "secure_sum_threshold");
  }
}

TEST(FederatedOptionsTest, EachDifferenceIsNamed) {
  EXPECT_EQ(FederatedDifference(Some(), Some()), "");
  EXPECT_EQ(FederatedDifference({}, {}), "");
  EXPECT_THAT(FederatedDifference({}, Some()), HasSubstr("no --clip_norm"));
  EXPECT_THAT(FederatedDifference(Some(), {}), HasSubstr("federated.clip_norm = 0.5"));
  FederatedOptions other = Some();
  other.clip_norm = 1;
  EXPECT_EQ(FederatedDifference(Some(), other),
            "the server has federated.clip_norm = 0.5, and the island 1");
  other = Some();
  other.secure_sum_threshold = 2;
  EXPECT_THAT(FederatedDifference(Some(), other), HasSubstr("secure_sum_threshold = 3"));
  other = Some();
  other.noise_multiplier = 1;
  EXPECT_THAT(FederatedDifference(Some(), other), HasSubstr("noise_multiplier = 4"));
  other = Some();
  other.delta = 1e-6;
  EXPECT_THAT(FederatedDifference(Some(), other), HasSubstr("delta = 1e-05"));
  other = Some();
  other.max_epsilon = 0;
  EXPECT_THAT(FederatedDifference(Some(), other), HasSubstr("max_epsilon = 3.7"));
}

TEST(FederatedOptionsTest, WithoutALimitTheBudgetNeverEnds) {
  FederatedOptions options = Some();
  EXPECT_THAT(BudgetAfter(options, 9).MayTakeRound(), IsOk());
  EXPECT_THAT(BudgetAfter(options, 10).MayTakeRound(),
              StatusIs(absl::StatusCode::kResourceExhausted));
  options.max_epsilon = 0;
  EXPECT_THAT(BudgetAfter(options, 100000).MayTakeRound(), IsOk());
}

}  // namespace
}  // namespace megatron
