#include "tools/plan/measured_timeline.h"

#include <string>

#include "gtest/gtest.h"
#include "megatron/train/profile/check_trace.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

// Two stages with a micro-batch each: 10 ms forward and 20 ms backward.
SimulatedStep Simulated() {
  SimulatedStep step;
  step.stages.resize(2);
  const auto add = [&](int stage, ActionKind kind, double start, double end) {
    step.stages[stage].passes.push_back({{kind, 0, 0}, start, end});
  };
  add(0, ActionKind::kForward, 0, 0.010);
  add(1, ActionKind::kForward, 0.010, 0.020);
  add(1, ActionKind::kBackward, 0.020, 0.040);
  add(0, ActionKind::kBackward, 0.040, 0.060);
  return step;
}

// Each rank's second step begins at 100 ms, and its passes 2 ms later.
report::RunProfile Measured() {
  report::RunProfile measured;
  for (int rank : {0, 1}) {
    report::RankProfile profile;
    profile.rank = rank;
    profile.parts = {{"data", "data", 100, 102, false},
                     {"forward 0", "forward", 102.0 + 11 * rank, 113.0 + 11 * rank, false},
                     {"all-reduce", "communication tp", 105.0 + 11 * rank, 106.0 + 11 * rank, true},
                     {"wait for other stages", "wait for other stages", 124, 126, false},
                     {"backward 0", "backward", 126, 148, false}};
    measured.ranks.push_back(profile);
  }
  return measured;
}

TEST(MeasuredTimelineTest, OneTraceHasBothStepsWithTheirFirstPassesAtTheSameTime) {
  EXPECT_DOUBLE_EQ(FirstPass(Measured()), 0.002);
  const std::string text = TraceJson(TraceBeside(Simulated(), Measured()));
  EXPECT_TRUE(CheckTrace(text).ok()) << CheckTrace(text);
  const auto file = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(file.is_object()) << text;
  int simulated = 0, measured = 0, processes = 0;
  for (const auto& event : file.at("traceEvents")) {
    processes += event.at("name") == "process_name";
    if (event.at("name") != "forward 0") continue;
    const int process = event.at("pid");
    const double begin = event.at("ts");
    (process < 2 ? simulated : measured) += 1;
    if (process == 0) {
      EXPECT_DOUBLE_EQ(begin, 2000);
    }
    if (process == 2) {
      EXPECT_DOUBLE_EQ(begin, 2000);
    }
    if (process == 3) {
      EXPECT_DOUBLE_EQ(begin, 13000);
    }
  }
  EXPECT_EQ(processes, 4);
  EXPECT_EQ(simulated, 2);
  EXPECT_EQ(measured, 2);
}

TEST(MeasuredTimelineTest, ThePictureHasALaneForEachStageAndEachRank) {
  const LaneChart chart = ChartBeside(Simulated(), Measured(), 8);
  ASSERT_EQ(chart.panels.size(), 2);
  ASSERT_EQ(chart.panels[0].lanes.size(), 2);
  ASSERT_EQ(chart.panels[1].lanes.size(), 2);
  EXPECT_DOUBLE_EQ(chart.panels[0].lanes[0].boxes[0].begin, 2);
  const LaneBox& forward = chart.panels[1].lanes[0].boxes[1];
  EXPECT_DOUBLE_EQ(forward.begin, 2);
  EXPECT_EQ(forward.label, "0");
  EXPECT_EQ(forward.color, chart.panels[0].lanes[0].boxes[0].color);
  EXPECT_TRUE(chart.panels[1].lanes[0].boxes[2].inner);
  EXPECT_EQ(ChartBeside(Simulated(), Measured(), 1).panels[1].lanes.size(), 1);
}

TEST(MeasuredTimelineTest, AProfileWithoutPassesMovesNothing) {
  report::RunProfile none;
  EXPECT_EQ(FirstPass(none), 0);
  EXPECT_EQ(TraceBeside(Simulated(), none).size(), 2);
}

}  // namespace
}  // namespace megatron
