// Bandwidth of all-reduce between threads. bytes_per_second is nccl-tests' "algbw": bytes of one
// rank's buffer over the time of a call; bus bandwidth is 2 (n - 1) / n times that.

#include <algorithm>
#include <vector>

#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"

namespace megatron {
namespace {

template <typename T>
void BM_AllReduce(benchmark::State& state) {
  const int ranks = state.range(0);
  const int64_t count = state.range(1) / sizeof(T);
  // Many short calls for each look at the clock.
  const int calls = static_cast<int>(std::clamp<int64_t>((1 << 20) / state.range(1), 1, 20));
  // Rank 0 decides, with the library, when to stop, and tells the others after every call.
  const absl::Status status = RunRanks(ranks, [&](int rank, const ProcessGroup& world) {
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    std::vector<T> values(count);
    const Tensor tensor(values.data(), DTypeOf<T>::value, {count});
    int32_t go_on = 1;
    const Tensor go_on_tensor(&go_on, DType::kInt32, {1});
    while (true) {
      if (rank == 0) go_on = state.KeepRunningBatch(calls) ? 1 : 0;
      world.Broadcast(go_on_tensor, 0, stream);
      if (go_on == 0) return world.status();
      for (int i = 0; i < calls; ++i) world.AllReduce(tensor, ReduceOp::kSum, stream);
    }
  });
  CHECK(status.ok()) << status;
  state.SetBytesProcessed(state.iterations() * count * sizeof(T));
}

void Sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"ranks", "bytes"})->UseRealTime()->MeasureProcessCPUTime();
  for (int ranks : {2, 4}) {
    for (int64_t bytes : {4, 1 << 10, 1 << 16, 1 << 20, 1 << 24}) {
      benchmark->Args({ranks, bytes});
    }
  }
}

BENCHMARK_TEMPLATE(BM_AllReduce, float)->Apply(Sizes);
BENCHMARK_TEMPLATE(BM_AllReduce, BFloat16)->Apply(Sizes);

}  // namespace
}  // namespace megatron
