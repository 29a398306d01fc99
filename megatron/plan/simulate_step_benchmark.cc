// The time to simulate a step of 64 stages and 512 micro-batches.
#include <vector>

#include "benchmark/benchmark.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/pipeline/stage_plan.h"
#include "megatron/plan/simulate_step.h"

namespace megatron {
namespace {

std::vector<StagePlan> Plans() {
  ScheduleOptions options;
  options.stages = 64;
  options.microbatches = 512;
  return PlanStages(MakeSchedule(options));
}

void BM_PlanStages(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Plans());
}
BENCHMARK(BM_PlanStages)->Unit(benchmark::kMillisecond);

void BM_SimulateStep(benchmark::State& state) {
  const std::vector<StagePlan> plans = Plans();
  const PartCosts seconds(ActionCosts{0.01, 0.01, 0.01});
  for (auto _ : state) benchmark::DoNotOptimize(SimulateStep(plans, seconds, {0.001}));
}
BENCHMARK(BM_SimulateStep)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace megatron
