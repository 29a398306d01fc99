#include "megatron/train/metrics/console_writers.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/metrics/log_line.h"
#include "megatron/train/metrics/time_report.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::HasSubstr;

StepMetrics Step() {
  StepMetrics step;
  step.iteration = 3;
  step.train_iters = 12;
  step.loss = 2;
  step.total_loss = 2.5;
  step.speed.tokens_per_second = 640;
  step.speed.time_left = absl::Seconds(9);
  return step;
}

std::string StdoutOf(const std::function<void()>& body) {
  ::testing::internal::CaptureStdout();
  body();
  return ::testing::internal::GetCapturedStdout();
}

TEST(LogLineWriterTest, PrintsTheStepsThatAreLogged) {
  RankProgress progress;
  RankConsole console(/*prints=*/true, &progress);
  LogLineWriter writer(&console, /*timing_log_level=*/0, TimerOption::kMinMax);
  StepMetrics step = Step();
  EXPECT_EQ(StdoutOf([&] { EXPECT_THAT(writer.WriteStep(step), IsOk()); }), "");
  step.interval.emplace();
  step.interval->losses = {{kLmLossName, 2}};
  EXPECT_EQ(StdoutOf([&] { EXPECT_THAT(writer.WriteStep(step), IsOk()); }),
            FormatLogLine(step) + "\n");
}

TimeReport Report(int64_t peak_bytes) {
  RankTimes times;
  times.by_category[static_cast<int>(TimeCategory::kCompute)] = 1'000'000;
  times.timers[TimerOfSpan("optimizer")] = 500'000;
  times.peak_bytes = peak_bytes;
  return MakeTimeReport({times}, /*iterations=*/1);
}

TEST(LogLineWriterTest, TimesStandBelowTheLineAndMemoryWhereItsPeakHasRisen) {
  RankProgress progress;
  RankConsole console(/*prints=*/true, &progress);
  LogLineWriter writer(&console, /*timing_log_level=*/1, TimerOption::kMax);
  StepMetrics step = Step();
  step.interval.emplace();
  const auto printed = [&](const TimeReport& report) {
    step.times = &report;
    return StdoutOf([&] { EXPECT_THAT(writer.WriteStep(step), IsOk()); });
  };
  const TimeReport first = Report(1000), higher = Report(2000);
  const std::string log = FormatLogLine(step) + "\n", times = FormatTimeLine(first) + "\n",
                    timers = FormatTimers(first, 1, TimerOption::kMax) + "\n";
  EXPECT_THAT(timers, HasSubstr("optimizer"));
  EXPECT_EQ(printed(first), log + times + FormatMemoryLine(first) + "\n" + timers);
  EXPECT_EQ(printed(first), log + times + timers);
  EXPECT_EQ(printed(higher), log + times + FormatMemoryLine(higher) + "\n" + timers);
}

TEST(LogLineWriterTest, PrintsEvaluations) {
  RankProgress progress;
  RankConsole console(/*prints=*/true, &progress);
  LogLineWriter writer(&console, /*timing_log_level=*/0, TimerOption::kMinMax);
  EvaluationMetrics evaluation;
  evaluation.iteration = 6;
  EXPECT_EQ(StdoutOf([&] { EXPECT_THAT(writer.WriteEvaluation(evaluation), IsOk()); }),
            FormatValidationBlock(evaluation) + "\n");
}

// A terminal in place of stderr.
class Terminal {
 public:
  Terminal() : master_(posix_openpt(O_RDWR | O_NOCTTY)), stderr_(dup(STDERR_FILENO)) {
    EXPECT_EQ(grantpt(master_), 0);
    EXPECT_EQ(unlockpt(master_), 0);
    const int slave = open(ptsname(master_), O_RDWR | O_NOCTTY);
    EXPECT_GE(slave, 0);
    dup2(slave, STDERR_FILENO);
    close(slave);
  }
  ~Terminal() {
    dup2(stderr_, STDERR_FILENO);
    close(stderr_);
    close(master_);
  }

  // Returns what was written to it. Waits until something is.
  std::string Read() const {
    char bytes[1000];
    const ssize_t got = read(master_, bytes, sizeof(bytes));
    return got <= 0 ? "" : std::string(bytes, got);
  }

 private:
  const int master_, stderr_;
};

TEST(ProgressBarWriterTest, ShowsEveryStep) {
  setenv("TERM", "xterm", 1);
  RankProgress progress;
  const Terminal terminal;
  RankConsole console(/*prints=*/true, &progress);
  ProgressBarWriter writer(&console);
  EXPECT_EQ(StdoutOf([&] { EXPECT_THAT(writer.WriteStep(Step()), IsOk()); }), "");
  const std::string drawn = terminal.Read();
  EXPECT_THAT(drawn, HasSubstr("step 3/12 "));
  EXPECT_THAT(drawn, HasSubstr("25% | loss 2.5 | 640 tokens/s | ETA 9s"));
}

}  // namespace
}  // namespace megatron
