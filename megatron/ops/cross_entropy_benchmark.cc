// Speed of cross-entropy over GPT-2's vocabulary, as memory traffic: statistics read the logits;
// backward reads and writes them, and so does one op for both.
#include <array>
#include <cstring>
#include <vector>

#include "benchmark/benchmark.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/host_tensor.h"

namespace megatron::ops {
namespace {

constexpr int64_t kTokens = 512, kVocabulary = 50257, kColumns = 50304;
constexpr std::array<DType, 3> kDTypes = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

struct Operands {
  HostTensor logits, labels, weight, max, sum, target;

  explicit Operands(DType dtype)
      : logits({kTokens, kColumns}, dtype),
        labels({kTokens}, DType::kInt32),
        weight({kTokens}, DType::kFloat32),
        max({kTokens}, DType::kFloat32),
        sum({kTokens}, DType::kFloat32),
        target({kTokens}, DType::kFloat32) {
    // All rows are the same: drawing normal values takes longer than the measured op.
    const std::vector<char> row = HostTensor::Normal({kColumns}, dtype, 1).Bytes();
    for (int64_t t = 0; t < kTokens; ++t) {
      std::memcpy(logits.tensor().Select(0, t).raw(), row.data(), row.size());
      weight.Set(t, 1);
    }
  }

  void Statistics(ThreadPool* pool) const {
    CrossEntropyStatistics(Stream::Cpu(pool), logits, labels, {0, kVocabulary}, max, sum, target);
  }
};

void Report(benchmark::State& state, const Operands& x, int passes) {
  state.SetLabel(Name(x.logits.tensor().dtype()));
  state.SetBytesProcessed(state.iterations() * passes * x.logits.tensor().bytes());
}

void BM_CrossEntropyStatistics(benchmark::State& state) {
  ThreadPool pool(AvailableCores());
  const Operands x(kDTypes[state.range(0)]);
  for (auto _ : state) x.Statistics(&pool);
  Report(state, x, 1);
}
BENCHMARK(BM_CrossEntropyStatistics)->DenseRange(0, 2)->UseRealTime();

void BM_CrossEntropyBackward(benchmark::State& state) {
  ThreadPool pool(AvailableCores());
  const Operands x(kDTypes[state.range(0)]);
  x.Statistics(&pool);
  for (auto _ : state) {
    // The op works in place: from the second time on it reads gradients and not logits, at the same
    // cost.
    CrossEntropyBackward(Stream::Cpu(&pool), x.logits, x.labels, {0, kVocabulary}, x.max, x.sum,
                         x.weight);
  }
  Report(state, x, 2);
}
BENCHMARK(BM_CrossEntropyBackward)->DenseRange(0, 2)->UseRealTime();

void BM_CrossEntropy(benchmark::State& state) {
  ThreadPool pool(AvailableCores());
  const Operands x(kDTypes[state.range(0)]);
  // From the second time on it reads gradients, at the same cost.
  for (auto _ : state) {
    CrossEntropy(Stream::Cpu(&pool), x.logits, x.labels, {0, kVocabulary}, x.weight, x.target,
                 Tensor());
  }
  Report(state, x, 2);
}
BENCHMARK(BM_CrossEntropy)->DenseRange(0, 2)->UseRealTime();

}  // namespace
}  // namespace megatron::ops
