#include "megatron/plan/shared_cores.h"

#include <algorithm>
#include <cmath>

namespace megatron {
namespace {

// Returns the share of its cores' speed that a rank of so many threads has. Each doubling of the
// threads costs the same share.
double ThreadEfficiency(const Hardware& hardware, int64_t threads) {
  return std::pow(hardware.thread_efficiency(),
                  std::log(double(threads)) / std::log(double(hardware.cores())));
}

}  // namespace

bool HasMoreRanksThanCores(const Hardware& hardware, int64_t ranks) {
  return hardware.cores() > 0 && ranks > hardware.cores();
}

double RankSpeed(const Hardware& hardware, int64_t ranks) {
  const int64_t cores = hardware.cores() / std::max<int64_t>(1, ranks);
  return cores <= 1 ? 1 : double(cores) * ThreadEfficiency(hardware, cores);
}

Hardware WithFewerCores(Hardware hardware, int64_t cores) {
  if (cores >= hardware.cores()) return hardware;
  hardware.set_thread_efficiency(ThreadEfficiency(hardware, cores));
  hardware.set_cores(static_cast<int32_t>(cores));
  return hardware;
}

void ShareCores(const Hardware& hardware, const PlanLayout& layout, double excess,
                StepSeconds* seconds) {
  if (!HasMoreRanksThanCores(hardware, layout.gpus())) return;
  StepSeconds& s = *seconds;
  const double alone = s.total - s.constant;
  s.compute -= excess;
  const double ranks_of_a_core = double(layout.gpus()) / hardware.cores();
  const double busy = alone - s.bubble - excess;
  // Stages come in one after another until all cores have work, and end so.
  const int64_t ranks_of_a_stage = layout.gpus() / layout.pp;
  const int64_t filling = (hardware.cores() - 1) / ranks_of_a_stage;
  const double idle = layout.pp > 1 ? s.bubble / double(layout.pp - 1) * double(filling) / 2 : 0;
  const double shared = ranks_of_a_core * busy + idle;
  for (double StepSeconds::*part :
       {&StepSeconds::compute, &StepSeconds::tensor_parallel, &StepSeconds::context_parallel,
        &StepSeconds::expert_parallel, &StepSeconds::messages, &StepSeconds::data_parallel,
        &StepSeconds::optimizer}) {
    s.*part *= ranks_of_a_core;
  }
  s.bubble = std::max(shared, alone) - ranks_of_a_core * busy;
  s.total = std::max(shared, alone) + s.constant;
}

}  // namespace megatron
