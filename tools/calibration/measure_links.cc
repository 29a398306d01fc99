#include "tools/calibration/measure_links.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/tcp/run_tcp_ranks.h"
#include "megatron/comm/thread/run_ranks.h"
#include "tools/bandwidth/comm_bench_measure.h"

namespace megatron {
namespace {

constexpr int64_t kSmall = 4096;
constexpr int64_t kLarge = 1 << 20;
constexpr int kMostRanksOfACore = 4;

// Seconds of a call, a mean of all-gather and reduce-scatter, with ranks that each have a core.
struct Times {
  double small = 0;
  double large = 0;
};

using RunWorld =
    std::function<absl::Status(int, const std::function<absl::Status(int, const ProcessGroup&)>&)>;

absl::Status MeasureRank(const ProcessGroup& world, Times* times) {
  ThreadPool pool(1);
  CommBenchOptions options;
  options.sizes = {kSmall, kLarge};
  options.iterations = 50;
  options.warmup = 5;
  options.check = false;
  for (BenchOperation operation : {BenchOperation::kAllGather, BenchOperation::kReduceScatter}) {
    MEGATRON_ASSIGN_OR_RETURN(const CommBenchResult result,
                              MeasureCollective(operation, options, world, Stream::Cpu(&pool)));
    if (world.rank() != 0) continue;
    times->small += result.rows.front().out_of_place->microseconds * 1e-6 / 2;
    times->large += result.rows.back().out_of_place->microseconds * 1e-6 / 2;
  }
  return absl::OkStatus();
}

// Processes share `times` by a mapping, since they tell their status alone.
absl::StatusOr<Times> MeasureWorld(int cores, int ranks, const RunWorld& run) {
  void* const shared =
      mmap(nullptr, sizeof(Times), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return absl::ResourceExhaustedError("there is no memory to share");
  Times* const times = new (shared) Times();
  const absl::Status status =
      run(ranks, [&](int, const ProcessGroup& world) { return MeasureRank(world, times); });
  Times result = *times;
  munmap(shared, sizeof(Times));
  MEGATRON_RETURN_IF_ERROR(status);
  const double turns = std::max(1.0, double(ranks) / cores);
  result.small /= turns;
  result.large /= turns;
  return result;
}

// Returns the rate that makes the call of that many ranks take its time (CollectiveSeconds).
double Rate(const Times& times, int ranks) {
  const double bytes = double(kLarge - kSmall) * (ranks - 1) / ranks;
  return bytes / std::max(1e-9, times.large - times.small);
}

// The rates of few and of many ranks count alike.
double MeanRate(double few, double many) { return std::sqrt(few * many); }

}  // namespace

absl::StatusOr<LinkRates> MeasureThreads(int cores) {
  const RunWorld run = [](int ranks, const auto& body) { return RunRanks(ranks, body); };
  const int few = 2;
  const int many = kMostRanksOfACore * std::max(2, cores);
  MEGATRON_ASSIGN_OR_RETURN(const Times of_few, MeasureWorld(cores, few, run));
  MEGATRON_ASSIGN_OR_RETURN(const Times of_many, MeasureWorld(cores, many, run));
  // CollectiveSeconds expects rings of few ranks to be slower, as they are on GPUs.
  const auto ring = [](int ranks) { return (ranks + 0.61) / ranks; };
  LinkRates rates;
  rates.bytes_per_s = MeanRate(Rate(of_few, few) * ring(few), Rate(of_many, many) * ring(many));
  rates.rank_latency_us = std::max(0.01, (of_many.small - of_few.small) / (many - few) * 1e6);
  rates.latency_us = std::max(0.1, of_few.small * 1e6 - few * rates.rank_latency_us);
  return rates;
}

absl::StatusOr<LinkRates> MeasureProcesses(int cores) {
  const RunWorld run = [](int ranks, const auto& body) {
    return RunTcpRanksInProcesses(ranks, body);
  };
  const int few = 2;
  const int many = kMostRanksOfACore * std::max(2, cores);
  MEGATRON_ASSIGN_OR_RETURN(const Times of_few, MeasureWorld(cores, few, run));
  MEGATRON_ASSIGN_OR_RETURN(const Times of_many, MeasureWorld(cores, many, run));
  LinkRates rates;
  rates.bytes_per_s = MeanRate(Rate(of_few, few), Rate(of_many, many));
  rates.latency_us =
      std::max(0.1, 1e6 * MeanRate(of_few.small / std::log2(few), of_many.small / std::log2(many)));
  return rates;
}

}  // namespace megatron
