#include "megatron/train/metrics/what_if.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/forwarding_communicator.h"
#include "megatron/comm/process_groups.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/pipeline/executor.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/pipeline/stage.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMicrosecond = 1000;
constexpr int kRanks = 8, kStages = 2, kMicroBatches = 4, kSteps = 10;

// The delays of a run.
struct Delays {
  std::vector<double> work = std::vector<double>(kRanks, 1);  // a factor of each rank's work
  std::string slow_group;                                     // its calls take 20 times as long
  int expert = 1;                                             // ranks of an expert-parallel group
  RankOrder order;
};

// The moments at which ranks have come to the messages between them.
class Arrivals {
 public:
  enum Side { kSender, kReceiver };

  void Set(int from, int to, int64_t number, Side side, int64_t moment) {
    const std::lock_guard<std::mutex> lock(mutex_);
    moments_[{from, to, number, side}] = moment;
  }
  int64_t Get(int from, int to, int64_t number, Side side) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return moments_.at({from, to, number, side});
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<int, int, int64_t, Side>, int64_t> moments_;
};

// The clock of a rank. It moves by work and by calls, which end on all ranks at once.
struct Clock {
  int64_t now = 0;
};

class TimedCommunicator : public ForwardingCommunicator {
 public:
  TimedCommunicator(std::shared_ptr<Communicator> inner, const Delays& delays, Clock* clock,
                    std::shared_ptr<std::map<std::string, Arrivals>> arrivals)
      : ForwardingCommunicator(std::move(inner)),
        delays_(delays),
        clock_(*clock),
        arrivals_(std::move(arrivals)) {}

  void Run(const CollectiveCall& call, const Stream& stream) override {
    const int64_t cost = (name() == delays_.slow_group ? 20 : 1) * 30 * kMicrosecond;
    if (call.collective == Collective::kExchange) {
      Exchange(call, stream);
    } else {
      CollectiveCall latest;
      latest.collective = Collective::kAllReduce;
      latest.reduce = ReduceOp::kMax;
      latest.in = Tensor(&clock_.now, DType::kInt64, {1});
      inner().Run(latest, stream);
      inner().Run(call, stream);
    }
    clock_.now += cost;
  }

 private:
  std::shared_ptr<Communicator> Wrap(std::shared_ptr<Communicator> part) override {
    return std::make_shared<TimedCommunicator>(std::move(part), delays_, &clock_, arrivals_);
  }

  void Exchange(const CollectiveCall& call, const Stream& stream) {
    Arrivals& arrivals = arrivals_->at(name());
    std::vector<std::tuple<int, int, int64_t, Arrivals::Side>> others;
    for (const Transfer& send : call.sends) {
      const int64_t number = sent_[send.peer]++;
      arrivals.Set(rank(), send.peer, number, Arrivals::kSender, clock_.now);
      others.emplace_back(rank(), send.peer, number, Arrivals::kReceiver);
    }
    for (const Transfer& receive : call.receives) {
      const int64_t number = received_[receive.peer]++;
      arrivals.Set(receive.peer, rank(), number, Arrivals::kReceiver, clock_.now);
      others.emplace_back(receive.peer, rank(), number, Arrivals::kSender);
    }
    inner().Run(call, stream);
    for (const auto& [from, to, number, side] : others)
      clock_.now = std::max(clock_.now, arrivals.Get(from, to, number, side));
  }

  const Delays& delays_;
  Clock& clock_;
  const std::shared_ptr<std::map<std::string, Arrivals>> arrivals_;  // by group
  std::map<int, int64_t> sent_, received_;                           // by peer
};

// A rank whose passes are work and calls of its groups.
class TimedRank : public Stage {
 public:
  TimedRank(const Delays& delays, int rank, Clock* clock, const ProcessGroups& groups, Trace* trace)
      : factor_(delays.work[rank]),
        clock_(*clock),
        groups_(groups),
        random_(rank),
        pool_(1),
        stream_(trace->Follow(Stream::Cpu(&pool_), "compute")) {}

  std::vector<TensorSpec> InputSpecs(int, int) const override {
    return Edge(groups_.pipeline.rank() > 0);
  }
  std::vector<TensorSpec> OutputSpecs(int, int) const override {
    return Edge(groups_.pipeline.rank() < groups_.pipeline.size() - 1);
  }
  void Forward(const WorkItem&, absl::Span<const Tensor>, absl::Span<const Tensor>,
               const Stream&) override {
    Pass(1);
  }
  void Backward(const WorkItem&, absl::Span<const Tensor>, absl::Span<const Tensor>,
                const Stream&) override {
    Pass(2);
  }
  void BackwardWeight(const WorkItem&, const Stream&) override {}

  // The spans are those of Trainer::Step.
  absl::Status Step(const StagePlan& plan, Arena* arena) {
    const TraceSpan step(stream_, TimeCategory::kOther, "step", 1);
    {
      const TraceSpan span(stream_, TimeCategory::kData, "data");
      Work(100 * kMicrosecond);
    }
    {
      const TraceSpan span(stream_, TimeCategory::kOther, "forward-backward");
      const absl::Status status = RunSchedule(plan, this, groups_.pipeline, arena, stream_);
      if (!status.ok()) return status;
    }
    {
      const TraceSpan span(stream_, TimeCategory::kDataParallel, "reduce gradients");
      Call(groups_.data_context);
    }
    const TraceSpan span(stream_, TimeCategory::kOptimizer, "optimizer");
    {
      const TraceSpan norm(stream_, TimeCategory::kOptimizer, "gradient norm");
      Call(groups_.world);
    }
    Work(300 * kMicrosecond);
    return groups_.world.status();
  }

  // Makes all ranks begin the next step together.
  void Meet() { Call(groups_.world); }

 private:
  static std::vector<TensorSpec> Edge(bool exists) {
    if (!exists) return {};
    return {{DType::kFloat32, {1}}};
  }
  void Pass(int64_t times) {
    for (int layer = 0; layer < 3; ++layer) {
      Work(times * 400 * kMicrosecond);
      Call(groups_.tensor);
      Call(groups_.expert);
    }
  }
  // Work varies by a tenth.
  void Work(int64_t nanoseconds) {
    const double noise = std::uniform_real_distribution<double>(0.95, 1.05)(random_);
    clock_.now += static_cast<int64_t>(factor_ * noise * static_cast<double>(nanoseconds));
  }
  void Call(const ProcessGroup& group) {
    float number = 0;
    group.AllReduce(Tensor(&number, DType::kFloat32, {1}), ReduceOp::kSum, stream_);
  }

  const double factor_;
  Clock& clock_;
  const ProcessGroups& groups_;
  std::mt19937 random_;
  ThreadPool pool_;
  const Stream stream_;
};

// A run of tensor 2 x pipeline 2 x data 2 on clocks of its own.
class TimedRun {
 public:
  explicit TimedRun(const Delays& delays) {
    ParallelSizes sizes;
    sizes.tensor = sizes.data = 2;
    sizes.pipeline = kStages;
    sizes.expert = delays.expert;
    // Each expert-parallel group spans the data-parallel ranks.
    sizes.expert_tensor = 2;
    sizes.order = delays.order;
    input_.dense = *RankGrid::Create(sizes, kRanks);
    input_.expert = *RankGrid::CreateExpert(sizes, kRanks);
    ScheduleOptions options;
    options.stages = kStages;
    options.microbatches = kMicroBatches;
    const Schedule schedule = MakeSchedule(options);
    for (int stage = 0; stage < kStages; ++stage)
      input_.plans.push_back(PlanStage(schedule, stage));
    auto arrivals = std::make_shared<std::map<std::string, Arrivals>>();
    for (int i = 0; i < kRanks; ++i) (*arrivals)[absl::StrCat("pp-", i)];
    EXPECT_THAT(RunRanks(kRanks,
                         [&](int rank, const ProcessGroup& world) {
                           Clock clock;
                           auto timed = std::make_shared<TimedCommunicator>(
                               world.communicator(), delays, &clock, arrivals);
                           return RunRank(delays, rank, world, timed, &clock);
                         }),
                absl_testing::IsOk());
    what_if_ = ComputeWhatIf(input_);
  }

  // Seconds of a step by the clocks: the mean over steps of the rank that took longest.
  double seconds() const { return seconds_; }
  const WhatIf& what_if() const { return what_if_.value(); }

 private:
  absl::Status RunRank(const Delays& delays, int rank, const ProcessGroup& world,
                       const std::shared_ptr<Communicator>& timed, Clock* clock) {
    const auto groups = MakeGroups(input_.dense, input_.expert, timed);
    if (!groups.ok()) return groups.status();
    Trace trace([clock] { return clock->now; });
    TimedRank self(delays, rank, clock, *groups, &trace);
    StepSampler sampler(&trace);
    MemoryLedger ledger;
    Arena arena(Device(), 64 * Buffer::kAlignment, "edges", &ledger);
    const StagePlan& plan = input_.plans[input_.dense.Coordinate(rank, Axis::kPipeline)];
    int64_t sum = 0;
    for (int step = 0; step < kSteps; ++step) {
      self.Meet();
      int64_t longest = -clock->now;
      sampler.Begin();
      const absl::Status status = self.Step(plan, &arena);
      if (!status.ok()) return status;
      sampler.End();
      longest += clock->now;
      world.AllReduce(Tensor(&longest, DType::kInt64, {1}), ReduceOp::kMax, Stream::Inline());
      if (step > 0) sum += longest;
    }
    const auto steps = GatherStepTimes(sampler.samples(), world);
    if (rank == 0) {
      seconds_ = static_cast<double>(sum) * 1e-9 / (kSteps - 1);
      input_.steps = steps;
    }
    return world.status();
  }

  WhatIfInput input_;
  std::optional<WhatIf> what_if_;
  double seconds_ = 0;
};

MATCHER_P(IsWithinFivePercentOf, seconds, "") {
  *result_listener << "which is " << (arg / seconds - 1) * 100 << " % off " << seconds;
  return std::abs(arg / seconds - 1) <= 0.05;
}

TEST(WhatIfTest, AReplayTakesWhatTheRunTook) {
  struct Case {
    int expert;
    const char* order;
  };
  for (const auto& [expert, order] :
       {Case{1, "tp-cp-ep-dp-pp"}, Case{2, "tp-cp-ep-dp-pp"}, Case{1, "pp-dp-tp-cp-ep"}}) {
    Delays delays;
    delays.expert = expert;
    delays.order = *RankOrder::Parse(order);
    const TimedRun run(delays);
    EXPECT_NEAR(run.what_if().measured, run.seconds(), 1e-9);
    EXPECT_EQ(run.what_if().steps, kSteps - 1);
    EXPECT_THAT(run.what_if().replayed, IsWithinFivePercentOf(run.seconds())) << expert;
  }
}

TEST(WhatIfTest, ItSaysWhatARunWithoutTheSlowRankTakes) {
  for (const int expert : {1, 2}) {
    Delays even;
    even.expert = expert;
    const double without = TimedRun(even).seconds();
    for (int slow = 0; slow < kRanks; ++slow) {
      Delays delays = even;
      delays.work[slow] = 1.3;
      const TimedRun run(delays);
      EXPECT_GT(run.seconds(), 1.1 * without);
      EXPECT_THAT(run.what_if().replayed, IsWithinFivePercentOf(run.seconds()));
      ASSERT_TRUE(run.what_if().rank.has_value());
      EXPECT_THAT(run.what_if().rank->ranks, ElementsAre(slow));
      EXPECT_NEAR(run.what_if().rank->excess, 0.3, 0.03);
      EXPECT_THAT(run.what_if().rank->seconds, IsWithinFivePercentOf(without)) << slow;
      const auto savings = SavingsOf(run.what_if(), std::vector<std::string>(kRanks, "gpu08"));
      EXPECT_THAT(FormatWhatIf(run.what_if(), savings),
                  HasSubstr(absl::StrCat("rank ", slow, " on gpu08, +")));
    }
  }
}

TEST(WhatIfTest, ItSaysWhatARunWithEqualStagesTakes) {
  Delays uneven, even;
  for (int rank = 0; rank < kRanks; ++rank) {
    uneven.work[rank] = rank < kRanks / kStages ? 0.7 : 1.3;
  }
  const TimedRun run(uneven);
  const double without = TimedRun(even).seconds();
  ASSERT_TRUE(run.what_if().stage.has_value());
  EXPECT_EQ(run.what_if().stage->stage, 1);
  EXPECT_NEAR(run.what_if().stage->excess, 0.3, 0.03);
  EXPECT_GT(run.seconds(), 1.1 * without);
  EXPECT_THAT(run.what_if().stage->seconds, IsWithinFivePercentOf(without));
}

TEST(WhatIfTest, ItSaysWhatARunWithoutTheSlowGroupTakes) {
  Delays slow, even;
  slow.slow_group = "tp-3";  // ranks 6 and 7
  const TimedRun run(slow);
  const double without = TimedRun(even).seconds();
  ASSERT_TRUE(run.what_if().group.has_value());
  EXPECT_THAT(run.what_if().group->ranks, ElementsAre(6, 7));
  EXPECT_GT(run.seconds(), 1.1 * without);
  EXPECT_THAT(run.what_if().group->seconds, IsWithinFivePercentOf(without));
}

TEST(WhatIfTest, ARunWithoutSlowRanksIsToldSo) {
  WhatIf what_if;
  what_if.measured = what_if.replayed = 1;
  what_if.steps = 3;
  what_if.rank = WhatIf::Case{0.995, 0.005, {1}};
  EXPECT_EQ(FormatWhatIf(what_if, SavingsOf(what_if, {})),
            "# a step took 1 s (mean of 3; 1 s as replayed), and would take\n"
            "#  as long without any slow rank, stage or group\n");
  what_if.rank->seconds = 0.9;
  what_if.rank->excess = 0.12;
  EXPECT_EQ(FormatWhatIf(what_if, SavingsOf(what_if, {"a", "b"})),
            "# a step took 1 s (mean of 3; 1 s as replayed), and would take\n"
            "#       0.9 s (-10.0 %) if the slowest rank worked like its peers: rank 1 on b,"
            " +12.0 %\n");
}

}  // namespace
}  // namespace megatron
