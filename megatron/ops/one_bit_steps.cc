#include "megatron/ops/one_bit_steps.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/parallel_elements.h"

namespace megatron::ops {
namespace {

// Calls body(i) for each element, unless the stream only plans.
template <typename Body>
void ForEachElement(const Stream& stream, int64_t count, const Body& body) {
  if (stream.is_meta()) return;
  CHECK(RunsOnCpu(stream)) << "there is no kernel for GPUs";
  ParallelElements(stream.pool(), count, kElementGrain, [&](int64_t begin, int64_t size) {
    for (int64_t i = begin; i < begin + size; ++i) body(i);
  });
}

void CheckFlat(const Stream& stream, const Tensor& tensor, int64_t count) {
  CheckContiguous(stream, tensor, DType::kFloat32, {count});
}

}  // namespace

void MakeMomentum(const Stream& stream, double beta1, float grad_scale, const Tensor& m_N,
                  const Tensor& grad_N) {
  const int64_t count = grad_N.numel();
  CheckFlat(stream, m_N, count);
  CheckFlat(stream, grad_N, count);
  const auto* const m = m_N.data<float>();
  auto* const grad = grad_N.data<float>();
  const auto kept = static_cast<float>(beta1), taken = static_cast<float>(1 - beta1);
  ForEachElement(stream, count,
                 [=](int64_t i) { grad[i] = kept * m[i] + taken * (grad_scale * grad[i]); });
}

void TakeMomentum(const Stream& stream, double beta1, double beta2, const Tensor& next_N,
                  const Tensor& m_N, const Tensor& fresh_N) {
  const int64_t count = next_N.numel();
  CheckFlat(stream, next_N, count);
  CheckFlat(stream, m_N, count);
  CheckFlat(stream, fresh_N, count);
  const auto* const next = next_N.data<float>();
  auto* const m = m_N.data<float>();
  auto* const fresh = fresh_N.data<float>();
  const auto kept = static_cast<float>(beta1), taken = static_cast<float>(1 - beta1);
  const auto kept_fresh = static_cast<float>(beta2), taken_fresh = static_cast<float>(1 - beta2);
  ForEachElement(stream, count, [=](int64_t i) {
    const float g = (next[i] - kept * m[i]) / taken;
    fresh[i] = kept_fresh * fresh[i] + taken_fresh * g * g;
    m[i] = next[i];
  });
}

void LargestRatio(const Stream& stream, float epsilon, const Tensor& v_N, const Tensor& fresh_N,
                  const Tensor& out_1) {
  const int64_t count = v_N.numel();
  CheckFlat(stream, v_N, count);
  CheckFlat(stream, fresh_N, count);
  CheckFlat(stream, out_1, 1);
  if (stream.is_meta()) return;
  CHECK(RunsOnCpu(stream)) << "there is no kernel for GPUs";
  const auto* const v = v_N.data<float>();
  const auto* const fresh = fresh_N.data<float>();
  std::vector<float> largest((count + kElementGrain - 1) / kElementGrain, 0);
  ParallelElements(stream.pool(), count, kElementGrain, [&](int64_t begin, int64_t size) {
    for (int64_t i = begin; i < begin + size; ++i) {
      if (v[i] == 0) continue;
      const float ratio = (std::sqrt(v[i]) + epsilon) / (std::sqrt(fresh[i]) + epsilon);
      float& of_tile = largest[i / kElementGrain];
      of_tile = std::max(of_tile, ratio);
    }
  });
  float* const out = out_1.data<float>();
  *out = 0;
  for (const float ratio : largest) *out = std::max(*out, ratio);
}

void MultiplyByRoot(const Stream& stream, float epsilon, const Tensor& v_N, const Tensor& x_N) {
  const int64_t count = x_N.numel();
  CheckFlat(stream, v_N, count);
  CheckFlat(stream, x_N, count);
  const auto* const v = v_N.data<float>();
  auto* const x = x_N.data<float>();
  ForEachElement(stream, count, [=](int64_t i) { x[i] *= std::sqrt(v[i]) + epsilon; });
}

void Sum(const Stream& stream, const Tensor& a_N, const Tensor& b_N, const Tensor& out_N) {
  const int64_t count = out_N.numel();
  CheckFlat(stream, a_N, count);
  CheckFlat(stream, b_N, count);
  CheckFloating(out_N);
  CheckContiguous(stream, out_N, out_N.dtype(), {count});
  const auto* const a = a_N.data<float>();
  const auto* const b = b_N.data<float>();
  switch (out_N.dtype()) {
    case DType::kBFloat16: {
      auto* const out = out_N.data<BFloat16>();
      return ForEachElement(stream, count, [=](int64_t i) { out[i] = ToBFloat16(a[i] + b[i]); });
    }
    case DType::kFloat16: {
      auto* const out = out_N.data<Float16>();
      return ForEachElement(stream, count, [=](int64_t i) { out[i] = ToFloat16(a[i] + b[i]); });
    }
    default: {
      auto* const out = out_N.data<float>();
      return ForEachElement(stream, count, [=](int64_t i) { out[i] = a[i] + b[i]; });
    }
  }
}

}  // namespace megatron::ops
