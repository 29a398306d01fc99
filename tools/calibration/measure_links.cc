#include "tools/calibration/measure_links.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/comm/process_group.h"
#include "megatron/comm/tcp/run_tcp_ranks.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/trace/time_category.h"

namespace megatron {
namespace {

// Activations have about as many bytes as the small calls, and gradients of a layer as the large.
constexpr int64_t kSmall = 1 << 17;
constexpr int64_t kLarge = 1 << 22;
constexpr int kMostRanksOfACore = 4;
constexpr int kBatches = 9;
constexpr int kSmallCallsOfABatch = 20, kLargeCallsOfABatch = 3;
constexpr double kLeastCall = 1e-7;

// Seconds of an all-reduce, an all-gather and a reduce-scatter together, each between products, of
// ranks that each have a core; and of a small call more, if a thread of its own makes it.
struct Times {
  double small = 0;
  double large = 0;
  double lane = 0;
};

// What these calls have of one latency, and of the bytes of a tensor at the rate.
struct Counts {
  double latencies = 0;
  double tensors = 0;
};

using RunWorld =
    std::function<absl::Status(int, const std::function<absl::Status(int, const ProcessGroup&)>&)>;

// One rank's operands of a product like those of a small layer, and of calls over tensors of some
// bytes in all.
class Operands {
 public:
  Operands(const ProcessGroup& world, int64_t bytes)
      : world_(world),
        part_(std::max<int64_t>(1, bytes / int64_t(sizeof(float)) / world.size())),
        pool_(1),
        stream_(Stream::Cpu(&pool_)),
        x_(Make({kRows, kWidth})),
        w_(Make({kWidth, kWidth})),
        y_(Make({kRows, kWidth})),
        all_(Make({part_ * world.size()})),
        own_(Make({part_})) {}

  void Multiply() const { ops::LinearForward(stream_, x_, w_, Tensor(), y_); }
  void Sum() const { world_.AllReduce(all_, ReduceOp::kSum, stream_); }
  void Gather() const { world_.AllGather(own_, all_, stream_); }
  void Scatter() const { world_.ReduceScatter(all_, own_, stream_); }
  void Barrier() const { world_.Barrier(stream_); }
  // Gathers over `ranks`, which have a lane beside this rank's stream().
  void GatherOnLane(const ProcessGroup& ranks) const {
    StartAsync(ranks, stream_, TimeCategory::kWorld,
               [own = own_, all = all_](const ProcessGroup& group, const Stream& lane) {
                 group.AllGather(own, all, lane);
               })
        .Wait();
  }
  const Stream& stream() const { return stream_; }

 private:
  static constexpr int64_t kRows = 128, kWidth = 256;

  Tensor Make(const Shape& shape) {
    buffers_.emplace_back(Device{}, shape.numel() * int64_t(sizeof(float)), "calibration", nullptr);
    const Tensor tensor = buffers_.back().At(0, DType::kFloat32, shape);
    ops::Zero(stream_, tensor);
    return tensor;
  }

  const ProcessGroup& world_;
  const int64_t part_;
  ThreadPool pool_;
  const Stream stream_;
  std::deque<Buffer> buffers_;
  const Tensor x_, w_, y_, all_, own_;
};

// Returns the median seconds of a turn, which all ranks do together. Batches of so many go from
// barrier to barrier, so that the turns of ranks that share this one's core count too.
double TurnSeconds(const Operands& operands, int turns, const std::function<void()>& turn) {
  std::vector<double> seconds;
  operands.Barrier();
  auto begin = std::chrono::steady_clock::now();
  for (int batch = 0; batch < kBatches; ++batch) {
    for (int i = 0; i < turns; ++i) turn();
    operands.Barrier();
    const auto end = std::chrono::steady_clock::now();
    seconds.push_back(std::chrono::duration<double>(end - begin).count() / turns);
    begin = end;
  }
  std::nth_element(seconds.begin(), seconds.begin() + kBatches / 2, seconds.end());
  return seconds[kBatches / 2];
}

// In a step a call follows a product, whose end the ranks reach one after the other, and which has
// taken their threads and caches: it takes longer than one call behind another. What it takes is
// what a product and a call take beside a product alone.
double CallSeconds(const ProcessGroup& world, int64_t bytes) {
  const Operands operands(world, bytes);
  const int turns = bytes > kSmall ? kLargeCallsOfABatch : kSmallCallsOfABatch;
  const double alone = TurnSeconds(operands, turns, [&] { operands.Multiply(); });
  double sum = 0;
  for (void (Operands::*call)() const : {&Operands::Sum, &Operands::Gather, &Operands::Scatter}) {
    const double both = TurnSeconds(operands, turns, [&] {
      operands.Multiply();
      (operands.*call)();
    });
    sum += std::max(kLeastCall, both - alone);
  }
  return sum;
}

// Returns what a call takes more that is handed to another thread, and waited for.
absl::StatusOr<double> MeasureLane(const ProcessGroup& world) {
  const Operands operands(world, kSmall);
  MEGATRON_ASSIGN_OR_RETURN(const ProcessGroup beside, WithAsyncCalls(world, operands.stream()));
  const double on_lane = TurnSeconds(operands, kSmallCallsOfABatch, [&] {
    operands.Multiply();
    operands.GatherOnLane(beside);
  });
  const double here = TurnSeconds(operands, kSmallCallsOfABatch, [&] {
    operands.Multiply();
    operands.Gather();
  });
  return std::max(kLeastCall, on_lane - here);
}

absl::Status MeasureRank(const ProcessGroup& world, Times* times) {
  const double small = CallSeconds(world, kSmall), large = CallSeconds(world, kLarge);
  MEGATRON_ASSIGN_OR_RETURN(const double lane, MeasureLane(world));
  if (world.rank() == 0) *times = {small, std::max(small, large), lane};
  return world.status();
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

// Returns the rate at which the calls take their times (CollectiveSeconds).
double Rate(const Times& times, const Counts& counts) {
  return counts.tensors * double(kLarge - kSmall) / std::max(1e-6, times.large - times.small);
}

// Returns the seconds of one latency.
double Latency(const Times& times, const Counts& counts, double rate) {
  const double of_bytes = counts.tensors * double(kSmall) / rate;
  return std::max(kLeastCall, times.small - of_bytes) / counts.latencies;
}

// The rates of few and of many ranks count alike.
double MeanRate(double few, double many) { return std::sqrt(few * many); }

}  // namespace

// Threads meet once in a call, and read and write a tensor, a part of it behind a reduce-scatter.
absl::StatusOr<LinkRates> MeasureThreads(int cores) {
  const RunWorld run = [](int ranks, const auto& body) { return RunRanks(ranks, body); };
  const int few = 2;
  const int many = kMostRanksOfACore * std::max(2, cores);
  MEGATRON_ASSIGN_OR_RETURN(const Times of_few, MeasureWorld(cores, few, run));
  MEGATRON_ASSIGN_OR_RETURN(const Times of_many, MeasureWorld(cores, many, run));
  const auto counts = [](int ranks) { return Counts{3, 2.5 + 0.5 / ranks}; };
  LinkRates rates;
  rates.bytes_per_s = MeanRate(Rate(of_few, counts(few)), Rate(of_many, counts(many)));
  const double small = Latency(of_few, counts(few), rates.bytes_per_s);
  const double large = Latency(of_many, counts(many), rates.bytes_per_s);
  rates.rank_latency_us = std::max(0.01, (large - small) / (many - few) * 1e6);
  rates.latency_us = std::max(0.1, small * 1e6 - few * rates.rank_latency_us);
  rates.lane_us = 1e6 * of_few.lane;
  return rates;
}

// An all-reduce is two passes, and the others are one.
absl::StatusOr<LinkRates> MeasureProcesses(int cores) {
  const RunWorld run = [](int ranks, const auto& body) {
    return RunTcpRanksInProcesses(ranks, body);
  };
  const int few = 2;
  const int many = kMostRanksOfACore * std::max(2, cores);
  MEGATRON_ASSIGN_OR_RETURN(const Times of_few, MeasureWorld(cores, few, run));
  MEGATRON_ASSIGN_OR_RETURN(const Times of_many, MeasureWorld(cores, many, run));
  const auto counts = [](int ranks) { return Counts{4, 4.0 * (ranks - 1) / ranks}; };
  LinkRates rates;
  rates.bytes_per_s = MeanRate(Rate(of_few, counts(few)), Rate(of_many, counts(many)));
  const auto latency = [&](const Times& times, int ranks) {
    return Latency(times, counts(ranks), rates.bytes_per_s) / std::log2(ranks);
  };
  rates.latency_us = std::max(0.1, 1e6 * MeanRate(latency(of_few, few), latency(of_many, many)));
  return rates;
}

}  // namespace megatron
