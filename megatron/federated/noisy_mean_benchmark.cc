// The time of what federated rounds do for each element: masks on an island, and the noise of the
// server.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "benchmark/benchmark.h"
#include "megatron/federated/noisy_mean.h"

namespace megatron {
namespace {

constexpr int kElements = 1 << 20;

void BM_OneMask(benchmark::State& state) {
  const std::vector<Mask> masks = {{RandomKey(), false}};
  std::vector<uint32_t> values(kElements, 0);
  for (auto _ : state) {
    AddMasks(masks, 0, absl::MakeSpan(values));
    benchmark::DoNotOptimize(values.data());
  }
  state.SetItemsProcessed(state.iterations() * kElements);
}
BENCHMARK(BM_OneMask)->Unit(benchmark::kMillisecond);

void BM_Noise(benchmark::State& state) {
  std::vector<uint32_t> sum(kElements / 8, 0);
  std::vector<float> mean(kElements / 8);
  for (auto _ : state) {
    UnmaskedMean({}, 3, 1, 1, /*threads=*/1, absl::MakeSpan(sum), absl::MakeSpan(mean));
    benchmark::DoNotOptimize(mean.data());
  }
  state.SetItemsProcessed(state.iterations() * kElements / 8);
}
BENCHMARK(BM_Noise)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace megatron
