#include "megatron/train/metrics/prometheus_writer.h"

#include <cerrno>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/fault_file_system.h"
#include "megatron/base/memory_file_system.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class PrometheusWriterTest : public ::testing::Test {
 protected:
  PrometheusWriterTest() {
    options_.textfile = "run.prom";
    start_.run_id = "f00d";
  }

  void Open() {
    writer_ = std::make_unique<PrometheusWriter>(fs_, options_, start_, [this] { return now_; });
  }
  absl::Status Step(int64_t iteration) {
    StepMetrics step;
    step.iteration = iteration;
    step.time = now_;
    return writer_->WriteStep(step);
  }
  absl::Status Start() { return writer_->WriteEvent(RunEvent()); }
  http::Response Get(const std::string& path, const std::string& method = "GET") const {
    http::Request request;
    request.method = method;
    request.path = path;
    return writer_->Answer(request);
  }

  MemoryFileSystem disk_;
  FaultFileSystem fs_{&disk_};
  PrometheusOptions options_;
  RunStart start_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::unique_ptr<PrometheusWriter> writer_;
};

TEST_F(PrometheusWriterTest, TheFileFollowsAndGoesAtTheEnd) {
  Open();
  EXPECT_THAT(disk_.List("."), IsOkAndHolds(ElementsAre()));
  EXPECT_THAT(Start(), IsOk());
  EXPECT_THAT(disk_.List("."), IsOkAndHolds(ElementsAre("run.prom")));
  now_ += absl::Seconds(1);
  EXPECT_THAT(Step(1), IsOk());
  EXPECT_THAT(ReadFileToString(disk_, "run.prom"),
              IsOkAndHolds(HasSubstr("steps_total{run=\"f00d\"} 0\n")));
  now_ += absl::Seconds(5);
  EXPECT_THAT(Step(2), IsOk());
  EXPECT_THAT(ReadFileToString(disk_, "run.prom"),
              IsOkAndHolds(HasSubstr("steps_total{run=\"f00d\"} 2\n")));
  writer_.reset();
  EXPECT_THAT(disk_.List("."), IsOkAndHolds(ElementsAre()));
}

TEST_F(PrometheusWriterTest, AFullDiskLeavesTheOldFileAndNoOther) {
  Open();
  ASSERT_THAT(Start(), IsOk());
  const int operations = fs_.operation_count();
  const std::string before = *ReadFileToString(disk_, "run.prom");
  for (int i = 0; i < operations; ++i) {
    fs_.FailAt(i, ENOSPC, /*lasting=*/false);
    now_ += absl::Seconds(10);
    EXPECT_FALSE(Step(1).ok()) << i;
    EXPECT_THAT(disk_.List("."), IsOkAndHolds(ElementsAre("run.prom")));
    EXPECT_THAT(ReadFileToString(disk_, "run.prom"), IsOkAndHolds(before));
  }
  fs_.ClearFault();
  now_ += absl::Seconds(10);
  EXPECT_THAT(Step(2), IsOk());
}

TEST_F(PrometheusWriterTest, WhatIsNoFileStaysWhereItIs) {
  ASSERT_THAT(disk_.CreateDirs("run.prom/sub"), IsOk());
  Open();
  EXPECT_FALSE(Start().ok());
  writer_.reset();
  EXPECT_THAT(disk_.List("run.prom"), IsOkAndHolds(ElementsAre("sub")));
}

TEST_F(PrometheusWriterTest, IsUnhealthyWhenNothingHasEndedForLong) {
  options_.textfile.clear();
  options_.silence_limit = absl::Seconds(60);
  Open();
  EXPECT_EQ(Get("/healthz").status, 200);
  now_ += absl::Seconds(10);
  ASSERT_THAT(Step(1), IsOk());
  now_ += absl::Seconds(90);  // ten times the longest pause is more than the limit
  EXPECT_EQ(Get("/healthz").status, 200);
  now_ += absl::Seconds(11);
  const http::Response late = Get("/healthz");
  EXPECT_EQ(late.status, 503);
  EXPECT_EQ(late.body,
            "{\"healthy\": false, \"iteration\": 1, \"seconds_since_progress\": 101.0, "
            "\"limit_seconds\": 100.0}\n");
  ASSERT_THAT(writer_->WriteEvaluation({}), IsOk());
  EXPECT_EQ(Get("/healthz").status, 200);
}

TEST_F(PrometheusWriterTest, TheClockOfPausesIsNoDate) {
  const absl::Time before = absl::Now();
  Open();
  const std::string page = Get("/metrics").body;
  const std::string sample = "\nmegatron_start_timestamp_seconds{run=\"f00d\"} ";
  const size_t at = page.find(sample);
  ASSERT_NE(at, std::string::npos) << page;
  EXPECT_GE(std::stod(page.substr(at + sample.size())), absl::ToUnixSeconds(before));
}

TEST_F(PrometheusWriterTest, AnswersWhatIsThere) {
  options_.textfile.clear();
  Open();
  EXPECT_EQ(Get("/metrics").content_type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(Get("/metrics").body, StartsWith("# HELP megatron_"));
  EXPECT_EQ(Get("/metrics", "HEAD").status, 200);
  EXPECT_EQ(Get("/metrics", "POST").status, 405);
  EXPECT_EQ(Get("/").status, 404);
}

TEST_F(PrometheusWriterTest, ListensOnLoopbackAndSaysThatAPortIsTaken) {
  Open();
  const auto address = writer_->Listen(0);
  ASSERT_THAT(address, IsOk());
  EXPECT_THAT(*address, StartsWith("http://127.0.0.1:"));
  PrometheusWriter second(fs_, PrometheusOptions(), start_);
  const int port = std::stoi(address->substr(address->rfind(':') + 1));
  EXPECT_FALSE(second.Listen(port).ok());
}

}  // namespace
}  // namespace megatron
