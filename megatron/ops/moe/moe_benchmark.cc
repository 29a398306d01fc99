// Routing, permuting and the experts' products, beside their bounds: a copy of the same bytes, and
// one product of all rows with one weight.
#include <cstring>
#include <vector>

#include "benchmark/benchmark.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/host_tensor.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/moe/grouped_linear.h"
#include "megatron/ops/moe/permute.h"
#include "megatron/ops/moe/router.h"

namespace megatron::ops {
namespace {

constexpr int64_t kTokens = 2048, kHidden = 512, kExperts = 8, kFfn = 512;
constexpr int kTopk = 2;

struct Routed {
  Routed() {
    Router router;
    router.topk = kTopk;
    RouterForward(stream, router, logits, Tensor(), expert, probability);
    PlaceByExpert(stream, expert, place, counts);
    int64_t begin = 0;
    for (int64_t e = 0; e < kExperts; ++e) {
      const int64_t end = begin + counts.tensor().data<int64_t>()[e];
      groups.push_back({e, begin, end});
      begin = end;
    }
  }

  ThreadPool pool{1};
  Stream stream = Stream::Cpu(&pool);
  HostTensor logits = HostTensor::Normal({kTokens, kExperts}, DType::kFloat32, 1);
  HostTensor expert{{kTokens, kTopk}, DType::kInt32};
  HostTensor probability{{kTokens, kTopk}, DType::kFloat32};
  HostTensor place{{kTokens, kTopk, 1}, DType::kInt32};
  HostTensor counts{{1, 1, kExperts}, DType::kInt64};
  std::vector<RowGroup> groups;
};

void BM_RouterForward(benchmark::State& state) {
  Routed routed;
  Router router;
  router.topk = kTopk;
  for (auto _ : state) {
    RouterForward(routed.stream, router, routed.logits, Tensor(), routed.expert,
                  routed.probability);
  }
  state.SetItemsProcessed(state.iterations() * kTokens);
}
BENCHMARK(BM_RouterForward);

void BM_Permute(benchmark::State& state) {
  Routed routed;
  const HostTensor x = HostTensor::Normal({kTokens, kHidden}, DType::kBFloat16, 1);
  const HostTensor rows({kTokens * kTopk, kHidden}, DType::kBFloat16);
  for (auto _ : state) Permute(routed.stream, x, routed.place, rows);
  state.SetBytesProcessed(state.iterations() * rows.tensor().bytes());
}
BENCHMARK(BM_Permute);

void BM_Unpermute(benchmark::State& state) {
  Routed routed;
  const HostTensor y({kTokens, kHidden}, DType::kBFloat16);
  const HostTensor rows = HostTensor::Normal({kTokens * kTopk, kHidden}, DType::kBFloat16, 1);
  for (auto _ : state) Unpermute(routed.stream, rows, routed.place, routed.probability, y);
  state.SetBytesProcessed(state.iterations() * rows.tensor().bytes());
}
BENCHMARK(BM_Unpermute);

void BM_CopyOfTheSameRows(benchmark::State& state) {
  const HostTensor from = HostTensor::Normal({kTokens * kTopk, kHidden}, DType::kBFloat16, 1);
  const HostTensor to({kTokens * kTopk, kHidden}, DType::kBFloat16);
  for (auto _ : state) {
    std::memcpy(to.tensor().raw(), from.tensor().raw(), to.tensor().bytes());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * to.tensor().bytes());
}
BENCHMARK(BM_CopyOfTheSameRows);

void BM_GroupedLinear(benchmark::State& state) {
  Routed routed;
  const HostTensor x = HostTensor::Normal({kTokens * kTopk, kHidden}, DType::kBFloat16, 1);
  const HostTensor w = HostTensor::Normal({kExperts, kFfn, kHidden}, DType::kBFloat16, 2);
  const HostTensor y({kTokens * kTopk, kFfn}, DType::kBFloat16);
  for (auto _ : state) GroupedLinearForward(routed.stream, routed.groups, x, w, y);
  state.SetItemsProcessed(state.iterations() * 2 * x.numel() * kFfn);  // FLOPs
}
BENCHMARK(BM_GroupedLinear);

void BM_OneLinearOfAllRows(benchmark::State& state) {
  Routed routed;
  const HostTensor x = HostTensor::Normal({kTokens * kTopk, kHidden}, DType::kBFloat16, 1);
  const HostTensor w = HostTensor::Normal({kFfn, kHidden}, DType::kBFloat16, 2);
  const HostTensor y({kTokens * kTopk, kFfn}, DType::kBFloat16);
  for (auto _ : state) LinearForward(routed.stream, x, w, Tensor(), y);
  state.SetItemsProcessed(state.iterations() * 2 * x.numel() * kFfn);  // FLOPs
}
BENCHMARK(BM_OneLinearOfAllRows);

}  // namespace
}  // namespace megatron::ops
