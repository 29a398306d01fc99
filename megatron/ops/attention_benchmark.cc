// Speed of attention at head dims 64 and 128. A multiply-add counts as two operations; products
// hidden by the causal mask or a window are not counted.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/host_tensor.h"

namespace megatron::ops {
namespace {

struct Case {
  int64_t sequences, length, groups, heads, dim;
  DType dtype = DType::kFloat32;
  float dropout = 0;
  int64_t window = 0;  // 0: none
};

const Case kCases[] = {
    {4, 256, 12, 1, 64},   // a GPT-2 124M layer
    {1, 1024, 12, 1, 64},  // the same layer at its full length
    {1, 1024, 12, 1, 64, DType::kBFloat16},
    {1, 1024, 12, 1, 64, DType::kFloat32, 0.1f},
    {1, 1024, 2, 4, 128},  // grouped queries
    {1, 1024, 1, 1, 64},   // too few heads to occupy the threads
    {1, 8192, 2, 2, 64},   // long, and what windows leave of it
    {1, 8192, 2, 2, 64, DType::kFloat32, 0, 1023},
    {1, 8192, 2, 2, 64, DType::kFloat32, 0, 127},
};

struct Operands {
  HostTensor cu_seqlens, sample, position, q, k, v, out, lse, dout, dq, dk, dv;
  Attention attention;

  explicit Operands(const Case& c)
      : cu_seqlens({c.sequences + 1}, DType::kInt32),
        sample({c.sequences * c.length}, DType::kInt64),
        position({c.sequences * c.length}, DType::kInt32),
        q(HostTensor::Normal({c.sequences * c.length, c.groups, c.heads, c.dim}, c.dtype, 1)),
        k(HostTensor::Normal({c.sequences * c.length, c.groups, c.dim}, c.dtype, 2)),
        v(HostTensor::Normal({c.sequences * c.length, c.groups, c.dim}, c.dtype, 3)),
        out(q.tensor().shape(), c.dtype),
        lse({c.sequences * c.length, c.groups, c.heads}, DType::kFloat32),
        dout(HostTensor::Normal(q.tensor().shape(), c.dtype, 4)),
        dq(q.tensor().shape(), c.dtype),
        dk(k.tensor().shape(), c.dtype),
        dv(k.tensor().shape(), c.dtype) {
    for (int64_t s = 0; s <= c.sequences; ++s) cu_seqlens.Set(s, s * c.length);
    attention.window_size = c.window;
    attention.scale = static_cast<float>(1 / std::sqrt(c.dim));
    attention.cu_seqlens_q = attention.cu_seqlens_k = cu_seqlens;
    attention.max_seqlen_q = attention.max_seqlen_k = c.length;
    attention.dropout = {c.dropout, {1, 2}, sample, position, 0};
  }
};

// Number of operations of one product over the visible scores.
double Operations(const Case& c) {
  double scores = 0;
  for (int64_t i = 1; i <= c.length; ++i)
    scores += static_cast<double>(c.window > 0 ? std::min(i, c.window + 1) : i);
  return 2.0 * c.sequences * c.groups * c.heads * c.dim * scores;
}

void Report(benchmark::State& state, const Case& c, int products) {
  state.SetLabel(std::string(Name(c.dtype)) + (c.dropout > 0 ? " dropout" : "") +
                 (c.window > 0 ? " window of " + std::to_string(c.window + 1) : ""));
  state.counters["FLOP/s"] =
      benchmark::Counter(products * Operations(c), benchmark::Counter::kIsIterationInvariantRate);
}

void BM_AttentionForward(benchmark::State& state) {
  const Case& c = kCases[state.range(0)];
  ThreadPool pool(AvailableCores());
  const Operands x(c);
  for (auto _ : state) {
    AttentionForward(Stream::Cpu(&pool), x.attention, {x.q, x.k, x.v}, x.out, x.lse);
  }
  Report(state, c, 2);
}
BENCHMARK(BM_AttentionForward)->DenseRange(0, 8)->UseRealTime();

void BM_AttentionBackward(benchmark::State& state) {
  const Case& c = kCases[state.range(0)];
  ThreadPool pool(AvailableCores());
  const Operands x(c);
  AttentionForward(Stream::Cpu(&pool), x.attention, {x.q, x.k, x.v}, x.out, x.lse);
  for (auto _ : state) {
    AttentionBackward(Stream::Cpu(&pool), x.attention, {x.q, x.k, x.v}, x.out, x.lse, x.dout,
                      {x.dq, x.dk, x.dv});
  }
  Report(state, c, 5);
}
BENCHMARK(BM_AttentionBackward)->DenseRange(0, 8)->UseRealTime();

}  // namespace
}  // namespace megatron::ops
