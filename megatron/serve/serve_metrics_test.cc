#include "megatron/serve/serve_metrics.h"

#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron::serve {
namespace {

using ::testing::HasSubstr;

// A rate of the sum is computed from small differences of large values.
TEST(ServeMetricsTest, SumsHaveAllDigits) {
  ServeMetrics metrics;
  metrics.CountText(absl::Seconds(1234567));
  metrics.CountText(absl::Milliseconds(250));
  metrics.CountFirstToken(absl::Milliseconds(100));
  metrics.CountFirstToken(absl::Milliseconds(200));
  const std::string page = metrics.Page(EngineState(), EngineLimits());
  EXPECT_THAT(page, HasSubstr("\nmegatron_serve_request_seconds_sum 1234567.25\n"));
  EXPECT_THAT(page, HasSubstr("\nmegatron_serve_first_token_seconds_sum 0.3\n"));
}

}  // namespace
}  // namespace megatron::serve
