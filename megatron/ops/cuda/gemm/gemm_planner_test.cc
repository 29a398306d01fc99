#include "megatron/ops/cuda/gemm/gemm_planner.h"

#include <limits>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace megatron::ops::cuda {
namespace {

constexpr double kFails = std::numeric_limits<double>::infinity();
const GemmPlace kHere = {"NVIDIA H200", 130100};

Gemm Product(int64_t m) {
  Gemm gemm;
  gemm.m = m;
  gemm.n = gemm.k = 64;
  return gemm;
}

GemmKernel Kernel(int64_t id) {
  GemmKernel kernel;
  kernel.id = id;
  return kernel;
}

// Kernels 100, 101, ... with given times; each run of a kernel takes its next time.
class FakeCandidates : public GemmCandidates {
 public:
  explicit FakeCandidates(std::vector<std::vector<double>> times)
      : times_(std::move(times)), runs_(times_.size()) {
    for (size_t i = 0; i < times_.size(); ++i)
      kernels_.push_back(Kernel(100 + static_cast<int64_t>(i)));
  }

  absl::Span<const GemmKernel> kernels() const override { return kernels_; }
  double Seconds(int candidate) override {
    const std::vector<double>& times = times_[static_cast<size_t>(candidate)];
    return times[static_cast<size_t>(runs_[static_cast<size_t>(candidate)]++) % times.size()];
  }
  int runs(int candidate) const { return runs_[static_cast<size_t>(candidate)]; }
  int all_runs() const {
    int sum = 0;
    for (int runs : runs_) sum += runs;
    return sum;
  }

 private:
  std::vector<GemmKernel> kernels_;
  std::vector<std::vector<double>> times_;
  std::vector<int> runs_;
};

GemmPlanning Timing() {
  GemmPlanning planning;
  planning.time_products = true;
  return planning;
}

GemmPlan PlanOf(const Gemm& gemm, int64_t id, const GemmPlace& place = kHere) {
  return {place, gemm, Kernel(id), 1, 1};
}

TEST(TimeCandidatesTest, TheFastestOnMedianIsTaken) {
  // Kernel 101 is fast sometimes, kernel 102 always.
  FakeCandidates candidates({{10}, {9, 2, 9, 9, 2, 9, 9}, {6}});
  const GemmTiming timing = TimeCandidates(&candidates);
  EXPECT_EQ(timing.fastest, 2);
  EXPECT_EQ(timing.seconds, 6);
  EXPECT_EQ(timing.first_seconds, 10);
}

TEST(TimeCandidatesTest, ACandidateThatIsFasterByNoiseDoesNotReplaceTheFirst) {
  FakeCandidates candidates({{1}, {0.995}});
  EXPECT_EQ(TimeCandidates(&candidates).fastest, 0);
}

TEST(TimeCandidatesTest, SlowCandidatesAreNotRunAgain) {
  FakeCandidates candidates({{1}, {3}, {1.2}});
  TimeCandidates(&candidates);
  EXPECT_EQ(candidates.runs(1), 2);
  EXPECT_GT(candidates.runs(2), 6);
}

TEST(TimeCandidatesTest, ACandidateThatFailsIsNotChosen) {
  FakeCandidates candidates({{kFails}, {5}, {kFails}});
  const GemmTiming timing = TimeCandidates(&candidates);
  EXPECT_EQ(timing.fastest, 1);
  EXPECT_EQ(timing.seconds, 5);
}

TEST(GemmPlannerTest, WithoutPlansAndTimingTheLibrarysFirstChoiceIsTaken) {
  GemmPlanner planner;
  FakeCandidates candidates({{10}, {1}});
  EXPECT_EQ(planner.Choose(kHere, Product(1), true, &candidates), 0);
  EXPECT_EQ(candidates.all_runs(), 0);
}

TEST(GemmPlannerTest, APlanIsFollowedWithoutTiming) {
  GemmPlanner planner;
  GemmPlanning planning = Timing();
  planning.plans = {PlanOf(Product(1), 101)};
  planner.Use(planning);
  FakeCandidates candidates({{1}, {10}});
  EXPECT_EQ(planner.Choose(kHere, Product(1), true, &candidates), 1);
  EXPECT_EQ(candidates.all_runs(), 0);
}

TEST(GemmPlannerTest, PlansOfAnotherGpuLibraryOrProductAreNotFollowed) {
  GemmPlanner planner;
  GemmPlanning planning;
  Gemm with_bias = Product(1);
  with_bias.bias_alignment = 16;
  planning.plans = {PlanOf(Product(1), 101, {"NVIDIA H100", 130100}),
                    PlanOf(Product(1), 101, {"NVIDIA H200", 130000}), PlanOf(with_bias, 101)};
  planner.Use(planning);
  FakeCandidates candidates({{1}, {10}});
  EXPECT_EQ(planner.Choose(kHere, Product(1), true, &candidates), 0);
}

TEST(GemmPlannerTest, APlanForNoneOfTheCandidatesIsTimedAnewOrLeft) {
  for (bool time : {false, true}) {
    GemmPlanner planner;
    GemmPlanning planning;
    planning.time_products = time;
    planning.plans = {PlanOf(Product(1), -7)};
    planner.Use(planning);
    FakeCandidates candidates({{10}, {1}});
    EXPECT_EQ(planner.Choose(kHere, Product(1), true, &candidates), time ? 1 : 0);
    EXPECT_EQ(candidates.all_runs() > 0, time);
  }
}

TEST(GemmPlannerTest, ATimedChoiceIsReportedAndServesAsAPlan) {
  std::vector<GemmPlan> plans;
  GemmPlanning planning = Timing();
  planning.plans = {PlanOf(Product(2), 100)};
  planning.on_new_plan = [&](absl::Span<const GemmPlan> all) {
    plans.assign(all.begin(), all.end());
  };
  GemmPlanner planner;
  planner.Use(planning);
  FakeCandidates candidates({{10}, {4}});
  EXPECT_EQ(planner.Choose(kHere, Product(1), true, &candidates), 1);
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans[0].gemm, Product(1));
  EXPECT_EQ(plans[0].kernel, Kernel(101));
  EXPECT_EQ(plans[0].microseconds, 4e6);
  EXPECT_EQ(plans[0].first_microseconds, 10e6);
  EXPECT_EQ(plans[1].kernel, Kernel(100));

  GemmPlanning later;
  later.plans = plans;
  GemmPlanner pinned;
  pinned.Use(later);
  FakeCandidates other_times({{1}, {20}});
  EXPECT_EQ(pinned.Choose(kHere, Product(1), true, &other_times), 1);
}

TEST(GemmPlannerTest, AProductIsTimedOnce) {
  GemmPlanner planner;
  planner.Use(Timing());
  FakeCandidates candidates({{10}, {4}});
  EXPECT_EQ(planner.Choose(kHere, Product(1), true, &candidates), 1);
  const int runs = candidates.all_runs();
  EXPECT_EQ(planner.Choose(kHere, Product(1), true, &candidates), 1);
  EXPECT_EQ(candidates.all_runs(), runs);
}

// A choice that was made when nothing could be timed stays, since graphs have recorded it.
TEST(GemmPlannerTest, AChoiceIsNotChangedByALaterChanceToTime) {
  GemmPlanner planner;
  planner.Use(Timing());
  FakeCandidates candidates({{10}, {4}});
  EXPECT_EQ(planner.Choose(kHere, Product(1), false, &candidates), 0);
  EXPECT_EQ(planner.Choose(kHere, Product(1), true, &candidates), 0);
}

TEST(GemmPlannerTest, IfEveryRunFailsTheFirstIsChosenAndNoPlanIsKept) {
  bool called = false;
  GemmPlanning planning = Timing();
  planning.on_new_plan = [&](absl::Span<const GemmPlan>) { called = true; };
  GemmPlanner planner;
  planner.Use(planning);
  FakeCandidates candidates({{kFails}, {kFails}});
  EXPECT_EQ(planner.Choose(kHere, Product(1), true, &candidates), 0);
  EXPECT_FALSE(called);
}

// The caller may have another form of the product, as that of a weight's and a bias's gradients.
TEST(GemmPlannerTest, AProductWithoutKernelsIsNotPlanned) {
  GemmPlanning planning = Timing();
  planning.plans = {PlanOf(Product(1), 101)};
  bool called = false;
  planning.on_new_plan = [&](absl::Span<const GemmPlan>) { called = true; };
  GemmPlanner planner;
  planner.Use(planning);
  FakeCandidates none({});
  EXPECT_EQ(planner.Choose(kHere, Product(1), true, &none), GemmPlanner::kNoKernel);
  EXPECT_EQ(planner.Choose(kHere, Product(2), true, &none), GemmPlanner::kNoKernel);
  EXPECT_FALSE(called);
}

TEST(GemmPlannerTest, NoMoreThanALimitOfProductsIsTimed) {
  GemmPlanner planner;
  planner.Use(Timing());
  for (int64_t m = 1; m <= GemmPlanner::kMostTimed; ++m) {
    FakeCandidates candidates({{10}, {4}});
    EXPECT_EQ(planner.Choose(kHere, Product(m), true, &candidates), 1) << m;
  }
  FakeCandidates candidates({{10}, {4}});
  EXPECT_EQ(planner.Choose(kHere, Product(100000), true, &candidates), 0);
}

TEST(GemmPlannerTest, ThreadsThatTimeOneProductAtOnceAgree) {
  for (int round = 0; round < 20; ++round) {
    GemmPlanner planner;
    planner.Use(Timing());
    std::vector<int> chosen(4);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < chosen.size(); ++t) {
      threads.emplace_back([&, t] {
        // Each thread measures a different order.
        FakeCandidates candidates({{4.0 + (t % 2)}, {5.0 - (t % 2)}});
        chosen[t] = planner.Choose(kHere, Product(1), true, &candidates);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(chosen, std::vector<int>(chosen.size(), chosen[0]));
  }
}

}  // namespace
}  // namespace megatron::ops::cuda
