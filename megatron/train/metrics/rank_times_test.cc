#include "megatron/train/metrics/rank_times.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/train/metrics/time_report.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::SizeIs;

constexpr int64_t kMillisecond = 1'000'000;

// A rank whose clock the test moves.
class FakeRank {
 public:
  explicit FakeRank(const RankTimesMeter::Place& place = {})
      : pool_(1),
        trace_([this] { return now_; }),
        stream_(trace_.Follow(Stream::Cpu(&pool_), "compute")),
        beside_(Trace::FollowBeside(stream_, Stream::Inline(), "communication")),
        meter_(&trace_, place) {}

  void Work(TimeCategory category, const char* name, int64_t nanoseconds) {
    const TraceSpan span(stream_, category, name);
    now_ += nanoseconds;
  }
  void Call(TimeCategory category, const std::string& group, int64_t nanoseconds) {
    Call(stream_, category, group, nanoseconds);
  }
  void Broadcast(const std::string& group, int64_t nanoseconds) {
    const TraceSpan span(stream_, TimeCategory::kPipelineParallel, "broadcast",
                         TraceCall{group, 2, 8});
    now_ += nanoseconds;
  }
  void CallBeside(TimeCategory category, const std::string& group, int64_t nanoseconds) {
    Call(beside_, category, group, nanoseconds);
  }
  void Pass(int64_t nanoseconds) { now_ += nanoseconds; }

  int64_t now() const { return now_; }
  RankTimes Take() { return meter_.Take(); }

 private:
  void Call(const Stream& stream, TimeCategory category, const std::string& group,
            int64_t nanoseconds) {
    const TraceSpan span(stream, category, "all-reduce", TraceCall{group, 2, 1000});
    now_ += nanoseconds;
  }

  ThreadPool pool_;
  int64_t now_ = 5;
  Trace trace_;
  const Stream stream_, beside_;
  RankTimesMeter meter_;
};

TEST(RankTimesTest, TimesAreThoseSinceTheLastOnesAndAddUp) {
  FakeRank rank;
  rank.Work(TimeCategory::kCompute, "forward", 70);
  rank.Pass(30);
  const RankTimes first = rank.Take();
  EXPECT_EQ(first[TimeCategory::kCompute], 70);
  EXPECT_EQ(first[TimeCategory::kHost], 30);
  EXPECT_EQ(first.total(), 100);
  EXPECT_EQ(first.timers[TimerOfSpan("forward")], 70);
  rank.Work(TimeCategory::kCompute, "forward", 5);
  rank.Work(TimeCategory::kOptimizer, "update", 2);
  rank.Work(TimeCategory::kCheckpoint, "start checkpoint", 4);
  rank.Work(TimeCategory::kCheckpoint, "wait for checkpoint", 3);
  rank.Call(TimeCategory::kTensorParallel, "tp-0", 11);
  rank.Call(TimeCategory::kDataParallel, "dp-1", 13);
  const RankTimes second = rank.Take();
  EXPECT_EQ(second[TimeCategory::kCompute], 5);
  EXPECT_EQ(second.work(), 7);
  EXPECT_EQ(second.communication(), 24);
  EXPECT_EQ(second.total(), 38);
  EXPECT_EQ(second.timers[TimerOfSpan("forward")], 5);
  EXPECT_EQ(second.timers[TimerOfSpan("update")], 2);
  EXPECT_EQ(second.timers[kSaveTimer], 7);
  EXPECT_GT(std::string(second.host.data()).size(), 0u);
}

TEST(RankTimesTest, WaitingForStagesIsTheBubble) {
  FakeRank rank({/*stage=*/1, /*stages=*/2}), alone;
  for (FakeRank* each : {&rank, &alone}) {
    for (const int64_t time : {10, 25, 10}) {
      each->Call(TimeCategory::kPipelineParallel, "pp-3", time);
      each->Call(TimeCategory::kWorld, "world", time);
      each->Call(TimeCategory::kTensorParallel, "tp-0", time);
    }
  }
  const RankTimes times = rank.Take();
  EXPECT_EQ(times.stage, 1);
  EXPECT_EQ(times[TimeCategory::kPipelineParallel], 30);
  EXPECT_EQ(times[TimeCategory::kWorld], 30);
  EXPECT_EQ(times[TimeCategory::kTensorParallel], 45);
  EXPECT_EQ(times[TimeCategory::kBubble], 30);
  EXPECT_EQ(times.total(), 135);
  // Without a pipeline, ranks that wait for each other are no bubble.
  EXPECT_EQ(alone.Take()[TimeCategory::kWorld], 45);
}

TEST(RankTimesTest, TheBroadcastOfTheLossIsWaiting) {
  FakeRank rank({/*stage=*/0, /*stages=*/2});
  for (int step = 0; step < 3; ++step) rank.Broadcast("pp-0", 40);
  const RankTimes times = rank.Take();
  EXPECT_EQ(times[TimeCategory::kPipelineParallel], 0);
  EXPECT_EQ(times[TimeCategory::kBubble], 120);
}

TEST(RankTimesTest, CommunicationBesideComputingIsHidden) {
  FakeRank rank;
  rank.CallBeside(TimeCategory::kDataParallel, "dp-0-overlap-0", 40);
  const RankTimes times = rank.Take();
  EXPECT_EQ(times.hidden, 40);
  EXPECT_EQ(times.communication(), 0);
  EXPECT_EQ(times.total(), 40);  // the computing stream had nothing to do meanwhile
}

TEST(RankTimesTest, CommunicationThatComputingWaitsForIsNotHidden) {
  FakeRank rank;
  rank.CallBeside(TimeCategory::kTensorParallel, "tp-0-overlap-0", 40);
  rank.Work(TimeCategory::kTensorParallel, kWaitForLane, 15);
  const RankTimes times = rank.Take();
  EXPECT_EQ(times.hidden, 25);
  EXPECT_EQ(times[TimeCategory::kTensorParallel], 15);
  EXPECT_EQ(times[TimeCategory::kBubble], 0);
}

TEST(RankTimesTest, OfWaitingForMessagesBesideComputingAllButTheirTransferIsTheBubble) {
  FakeRank rank({/*stage=*/1, /*stages=*/2});
  for (const int64_t time : {10, 30, 10}) {
    rank.CallBeside(TimeCategory::kPipelineParallel, "pp-3-overlap-0", time);
    rank.Work(TimeCategory::kPipelineParallel, kWaitForStages, time);
  }
  const RankTimes times = rank.Take();
  EXPECT_EQ(times[TimeCategory::kPipelineParallel], 30);
  EXPECT_EQ(times[TimeCategory::kBubble], 20);
  EXPECT_EQ(times.hidden, 0);
  // Messages that come while the rank computes are hidden, and no earlier waiting is made up for.
  rank.CallBeside(TimeCategory::kPipelineParallel, "pp-3-overlap-0", 10);
  const RankTimes later = rank.Take();
  EXPECT_EQ(later.hidden, 10);
  EXPECT_EQ(later[TimeCategory::kBubble], 0);
}

TEST(RankTimesTest, AllRanksGetTheTimesOfAll) {
  EXPECT_THAT(RunRanks(3,
                       [](int rank, const ProcessGroup& world) {
                         RankTimes mine;
                         mine.by_category[2] = 100 + rank;
                         mine.held_bytes = rank;
                         const std::vector<RankTimes> all = GatherRankTimes(mine, world);
                         EXPECT_THAT(all, SizeIs(3));
                         for (int i = 0; i < 3; ++i) {
                           EXPECT_EQ(all[i].by_category[2], 100 + i);
                           EXPECT_EQ(all[i].held_bytes, i);
                         }
                         return absl::OkStatus();
                       }),
              IsOk());
  EXPECT_THAT(GatherRankTimes(RankTimes(), ProcessGroup()), SizeIs(1));
}

// Ranks of two stages, whose steps take unequal times that vary by 10 %, and who wait for each
// other at the end of each step.
class SlowRankTest : public testing::Test {
 protected:
  static constexpr int kRanks = 8, kStages = 2, kSteps = 50;

  SlowRankTest() {
    for (int i = 0; i < kRanks; ++i)
      ranks_.push_back(std::make_unique<FakeRank>(RankTimesMeter::Place{Stage(i), kStages}));
  }

  static int Stage(int rank) { return rank * kStages / kRanks; }

  // `slow` is the rank whose work takes `factor` times as long.
  TimeReport Run(int slow, double factor) {
    for (int step = 0; step < kSteps; ++step) {
      int64_t last = 0;
      for (int i = 0; i < kRanks; ++i) {
        const double work = (Stage(i) == 0 ? 20 : 30) * (i == slow ? factor : 1) * Noise();
        ranks_[i]->Work(TimeCategory::kCompute, "forward",
                        static_cast<int64_t>(work * kMillisecond));
        last = std::max(last, ranks_[i]->now());
      }
      for (const auto& rank : ranks_)
        rank->Call(TimeCategory::kWorld, "world", last + kMillisecond - rank->now());
    }
    std::vector<RankTimes> times;
    for (const auto& rank : ranks_) times.push_back(rank->Take());
    return MakeTimeReport(times, kSteps);
  }

 private:
  double Noise() { return std::uniform_real_distribution<double>(0.95, 1.05)(random_); }

  std::vector<std::unique_ptr<FakeRank>> ranks_;
  std::mt19937 random_;
};

TEST_F(SlowRankTest, ARankSlowedByATenthIsNamedAfterFiftySteps) {
  for (int slow = 0; slow < kRanks; ++slow) {
    const TimeReport report = Run(slow, 1.1);
    EXPECT_EQ(report.slowest_rank, slow);
    EXPECT_NEAR(report.slowest_excess, 0.1, 0.02);
  }
  EXPECT_LT(Run(/*slow=*/-1, 1).slowest_excess, 0.02);
}

}  // namespace
}  // namespace megatron
