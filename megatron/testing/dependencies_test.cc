// Uses every dependency of the build once: any target can link what this test links.

#include "Eigen/Core"
#include "absl/crc/crc32c.h"
#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/status/statusor.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "megatron/testing/probe.pb.h"
#include "nlohmann/json.hpp"

ABSL_FLAG(int, probe, 7, "An integer.");

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;

TEST(DependenciesTest, AbseilGivesStatusesFlagsAndChecksums) {
  EXPECT_THAT(absl::StatusOr<int>(3), IsOkAndHolds(3));
  EXPECT_THAT(absl::NotFoundError("gone"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(absl::GetFlag(FLAGS_probe), 7);
  EXPECT_EQ(static_cast<uint32_t>(absl::ComputeCrc32c("123456789")), 0xe3069283u);
}

TEST(DependenciesTest, ProtobufParsesText) {
  testing::Probe probe;
  ASSERT_TRUE(
      google::protobuf::TextFormat::ParseFromString("layers: 24 duration { seconds: 5 }", &probe));
  EXPECT_EQ(probe.layers(), 24);
  EXPECT_EQ(probe.duration().seconds(), 5);
}

TEST(DependenciesTest, EigenMultiplies) {
  Eigen::Matrix2f a;
  a << 1, 2, 3, 4;
  EXPECT_EQ((a * a)(1, 1), 22);
}

TEST(DependenciesTest, JsonParses) {
  EXPECT_EQ(nlohmann::json::parse(R"({"layers": [24]})")["layers"][0], 24);
}

TEST(DependenciesDeathTest, GlogChecks) {
  LOG(INFO) << "glog is the logger";
  EXPECT_DEATH(CHECK_EQ(1, 2) << "one is not two", "one is not two");
}

}  // namespace
}  // namespace megatron
