#include "megatron/train/metrics/rank_times_writer.h"

#include <cstring>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/train/metrics/run_summary.h"
#include "megatron/train/metrics/time_report.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using Json = nlohmann::json;

constexpr int64_t kMillisecond = 1'000'000;

class RankTimesWriterTest : public testing::Test {
 protected:
  // Writes a logged step: the ranks have computed so many milliseconds over 10 iterations.
  void Step(int64_t iteration, const std::vector<int64_t>& milliseconds, absl::Time time) {
    std::vector<RankTimes> ranks(milliseconds.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      ranks[i].by_category[static_cast<int>(TimeCategory::kCompute)] =
          milliseconds[i] * kMillisecond;
      ranks[i].stage = static_cast<int64_t>(i);
      std::strcpy(ranks[i].host.data(), "gpu08");
    }
    const TimeReport report = MakeTimeReport(ranks, 10);
    StepMetrics step;
    step.iteration = iteration;
    step.time = time;
    AddTimes(report, 0, &step);
    EXPECT_THAT(writer_.WriteStep(step), IsOk());
  }
  Json File() {
    const auto text = ReadFileToString(fs_, "/metrics.ranks.json");
    return text.ok() ? Json::parse(*text) : Json();
  }

  MemoryFileSystem fs_;
  RankTimesWriter writer_{fs_, RankTimesPath("/metrics.jsonl")};
  const absl::Time now_ = absl::Now();
};

TEST_F(RankTimesWriterTest, TheFileHasTheSumsOfEachRank) {
  Step(10, {1000, 2000}, now_);
  EXPECT_EQ(File()["iteration"], 10);
  // The file is not replaced at each log line.
  Step(20, {1000, 4000}, now_ + absl::Seconds(1));
  EXPECT_EQ(File()["iteration"], 10);
  EXPECT_THAT(writer_.Sync(), IsOk());
  const Json file = File();
  EXPECT_EQ(file["iteration"], 20);
  ASSERT_EQ(file["ranks"].size(), 2);
  EXPECT_EQ(file["ranks"][1]["host"], "gpu08");
  EXPECT_EQ(file["ranks"][1]["stage"], 1);
  EXPECT_DOUBLE_EQ(file["ranks"][1]["seconds"]["compute"], 6);
  EXPECT_DOUBLE_EQ(file["intervals"][1]["work"][1], 0.4);
  EXPECT_FALSE(file.contains("communication"));
}

TEST_F(RankTimesWriterTest, ALongRunHasFewIntervals) {
  for (int64_t i = 1; i <= 1000; ++i) Step(10 * i, {i, 2 * i}, now_);
  EXPECT_THAT(writer_.Sync(), IsOk());
  const Json file = File();
  EXPECT_LE(file["intervals"].size(), 24);
  EXPECT_EQ(file["intervals"].back()["last"], 10000);
  double sum = 0;
  int64_t last = 0;
  for (const Json& interval : file["intervals"]) {
    sum += interval["work"][0].get<double>() * (interval["last"].get<double>() - last);
    last = interval["last"];
  }
  EXPECT_NEAR(sum, 500.5, 1e-6);  // all of rank 0's work, in seconds
}

TEST_F(RankTimesWriterTest, TheEndHasCallsAndWhatAStepWouldTake) {
  RunSummary summary;
  summary.communication.push_back({"dp", "all-reduce", 2, 80, 8e9, 4, 1, 3, 8e9, 8e9});
  EXPECT_THAT(writer_.WriteSummary(summary), IsOk());
  EXPECT_TRUE(File().is_null());  // no step was logged
  Step(10, {1000, 2000}, now_);
  summary.what_if.emplace();
  summary.what_if->measured = 0.2;
  summary.savings = {{0.15, "if rank 1 were quick"}};
  EXPECT_THAT(writer_.WriteSummary(summary), IsOk());
  EXPECT_EQ(File()["communication"][0]["operation"], "all-reduce");
  EXPECT_EQ(File()["what_if"]["savings"][0]["seconds"], 0.15);
}

TEST_F(RankTimesWriterTest, OneRankHasNoFile) {
  Step(10, {1000}, now_);
  EXPECT_THAT(writer_.Sync(), IsOk());
  EXPECT_TRUE(File().is_null());
}

}  // namespace
}  // namespace megatron
