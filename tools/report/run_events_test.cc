#include "tools/report/run_events.h"

#include <memory>
#include <string>

#include "absl/status/status_matchers.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/train/metrics/tensorboard_writer.h"

namespace megatron::report {
namespace {

using ::absl_testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

absl::Time At(int64_t seconds) { return absl::FromUnixSeconds(1'700'000'000 + seconds); }

StepMetrics Step(int64_t iteration, int64_t seconds) {
  StepMetrics step;
  step.time = At(seconds);
  step.iteration = iteration;
  step.consumed_samples = 8 * iteration;
  step.loss = 2;
  step.world_size = 4;
  if (iteration % 2 == 0) {
    step.interval.emplace();
    step.memory_bytes = 1000 * iteration;
  }
  return step;
}

class RunEventsTest : public ::testing::Test {
 protected:
  // Runs the program from `first` to `last`, a step a second.
  void Train(int64_t first, int64_t last, int64_t at, const std::string& run_id = "0123abcd",
             const std::string& restart_reason = "") {
    RunStart start;
    start.restart_reason = restart_reason;
    start.run_id = run_id;
    start.config_text = "model {\n  num_layers: 4\n}\n";
    start.last_iteration = first - 1;
    start.consumed_samples = 8 * (first - 1);
    TensorboardWriter writer(fs_, "run/tensorboard", start, [at] { return At(at); });
    for (int64_t i = first; i <= last; ++i)
      ASSERT_THAT(writer.WriteStep(Step(i, at + i - first)), IsOk());
    ASSERT_THAT(writer.Sync(), IsOk());
  }

  RunEvents Read() {
    const auto events = ReadRunEvents(fs_, "run/tensorboard");
    EXPECT_THAT(events, IsOk());
    return *events;
  }

  MemoryFileSystem fs_;
};

TEST_F(RunEventsTest, EachStartHasItsStepsAndTimes) {
  Train(1, 9, 0);
  Train(7, 12, 100);  // steps 7 to 9 are taken again
  const RunEvents events = Read();
  ASSERT_THAT(events.starts, SizeIs(2));
  EXPECT_EQ(events.starts[0].first_iteration, 1);
  EXPECT_EQ(events.starts[0].last_iteration, 6);
  EXPECT_DOUBLE_EQ(events.starts[0].end - events.starts[0].begin, 5);
  EXPECT_EQ(events.starts[1].first_iteration, 7);
  EXPECT_EQ(events.starts[1].last_iteration, 12);
  EXPECT_DOUBLE_EQ(events.starts[1].begin - events.starts[0].begin, 100);
}

TEST_F(RunEventsTest, HasTheMetricsThatMetricsJsonlLacks) {
  Train(1, 4, 0);
  const RunEvents events = Read();
  const auto of = [&](const std::string& tag) {
    for (const MetricColumn& column : events.columns) {
      if (column.key == tag) return column.points;
    }
    return PlotPoints();
  };
  EXPECT_THAT(of("mem-allocated-bytes"), ElementsAre(Pair(2, 2000), Pair(4, 4000)));
  EXPECT_THAT(of("lm loss"), IsEmpty());
  EXPECT_EQ(events.config_text, "model {\n  num_layers: 4\n}\n\n");
}

TEST_F(RunEventsTest, FilesOfOtherRunsAreLeftOut) {
  Train(1, 9, 0, "aaaaaaaa");
  Train(1, 3, 1000, "bbbbbbbb");
  EXPECT_THAT(Read().starts, SizeIs(1));
}

TEST_F(RunEventsTest, ReadsUpToADamagedRecord) {
  Train(1, 9, 0);
  const std::string name = fs_.List("run/tensorboard")->front();
  std::string* const bytes = fs_.MutableContents("run/tensorboard/" + name);
  const std::string whole = *bytes;
  for (size_t size = 0; size < whole.size(); size += 7) {
    *bytes = whole.substr(0, size);
    const RunEvents events = Read();
    EXPECT_LE(events.starts.size(), 1);
    *bytes = whole;
    (*bytes)[size] ^= 1;
    Read();
  }
}

TEST_F(RunEventsTest, AStartKnowsWhyItWasStartedAgain) {
  Train(1, 9, 0);
  Train(7, 12, 100, "0123abcd", "rank 1 was lost");
  const RunEvents events = Read();
  ASSERT_THAT(events.starts, SizeIs(2));
  EXPECT_EQ(events.starts[0].reason, "");
  EXPECT_EQ(events.starts[1].reason, "rank 1 was lost");
}

TEST_F(RunEventsTest, AFolderThatIsMissingHasNoEvents) { EXPECT_THAT(Read().starts, IsEmpty()); }

}  // namespace
}  // namespace megatron::report
