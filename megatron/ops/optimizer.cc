#include "megatron/ops/optimizer.h"

#include <algorithm>
#include <atomic>

#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/adamw_step.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cpu/optimizer_kernels.h"
#include "megatron/ops/cpu/parallel_elements.h"
#include "megatron/ops/cpu/workspace.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

const OptimizerKernels& Kernels() {
  return ActiveIsa() == CpuIsa::kAvx512 ? avx512::kOptimizerKernels : avx2::kOptimizerKernels;
}

void CheckFlat(const Stream& stream, const Tensor& tensor, int64_t count) {
  CheckContiguous(stream, tensor, DType::kFloat32, {count});
}

void CheckMoment(const Stream& stream, const Tensor& moment, int64_t count) {
  CHECK(moment.dtype() == DType::kFloat32 || moment.dtype() == DType::kBFloat16 ||
        moment.dtype() == DType::kUInt8)
      << moment;
  CheckContiguous(stream, moment, moment.dtype(), {count});
}

void CheckUpdate(const Stream& stream, absl::Span<const OptimizerSegment> segments,
                 const Tensor& grad, const Tensor& master, const Tensor& out,
                 DType master_dtype = DType::kFloat32) {
  const int64_t count = grad.numel();
  CheckFlat(stream, grad, count);
  CheckContiguous(stream, master, master_dtype, {count});
  if (!out.empty()) {
    CheckFloating(out);
    CheckContiguous(stream, out, out.dtype(), {count});
  }
  for (const OptimizerSegment& segment : segments) {
    CHECK(0 <= segment.begin && segment.begin <= segment.end && segment.end <= count)
        << "[" << segment.begin << ", " << segment.end << ") of " << grad;
  }
}

void* At(const Tensor& tensor, int64_t begin) {
  if (tensor.empty()) return nullptr;
  return static_cast<char*>(tensor.raw()) + begin * SizeOf(tensor.dtype());
}

// The tensors of an update; those that it does not use are empty.
struct Flat {
  Tensor grad, m, v, master, out;
};

// Calls body(pointers) on pieces of the segment, in parallel.
template <typename Body>
void ForEachPiece(const Stream& stream, const OptimizerSegment& segment, const Flat& flat,
                  const Body& body) {
  ParallelElements(stream.pool(), segment.end - segment.begin, kElementGrain,
                   [&](int64_t offset, int64_t count) {
                     const int64_t begin = segment.begin + offset;
                     body(OptimizerPointers{flat.grad.data<float>() + begin, At(flat.m, begin),
                                            At(flat.v, begin), At(flat.master, begin),
                                            At(flat.out, begin), flat.m.dtype(), flat.v.dtype(),
                                            flat.master.dtype(), flat.out.dtype(), count});
                   });
}

}  // namespace

void AdamWUpdate(const Stream& stream, const AdamWOptions& options,
                 absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
                 const Tensor& m_N, const Tensor& v_N, const Tensor& master_N,
                 const Tensor& out_N) {
  CHECK_GE(options.step, 1);
  const bool splits = master_N.dtype() == DType::kUInt16;
  CHECK(!splits || out_N.dtype() == DType::kBFloat16) << out_N;
  CheckUpdate(stream, segments, grad_N, master_N, out_N, splits ? DType::kUInt16 : DType::kFloat32);
  CheckMoment(stream, m_N, grad_N.numel());
  CheckMoment(stream, v_N, grad_N.numel());
  if (RunsOnCuda(stream)) {
    return OnCuda<AdamWUpdate>(stream, options, segments, grad_N, m_N, v_N, master_N, out_N);
  }
  if (!RunsOnCpu(stream)) return;
  for (const OptimizerSegment& segment : segments) {
    const AdamWStep step = StepOf(options, segment);
    ForEachPiece(stream, segment, {grad_N, m_N, v_N, master_N, out_N},
                 [&](const OptimizerPointers& at) { Kernels().adamw(step, at); });
  }
}

void JoinMasters(const Stream& stream, const Tensor& weight_N, const Tensor& remainder_N,
                 const Tensor& out_N) {
  const int64_t count = out_N.numel();
  CheckFlat(stream, out_N, count);
  CheckContiguous(stream, weight_N, DType::kBFloat16, {count});
  CheckContiguous(stream, remainder_N, DType::kUInt16, {count});
  if (RunsOnCuda(stream)) return OnCuda<JoinMasters>(stream, weight_N, remainder_N, out_N);
  if (!RunsOnCpu(stream)) return;
  const BFloat16* const weights = weight_N.data<BFloat16>();
  const uint16_t* const remainders = remainder_N.data<uint16_t>();
  float* const out = out_N.data<float>();
  ParallelElements(stream.pool(), count, kElementGrain, [&](int64_t begin, int64_t pieces) {
    for (int64_t i = begin; i < begin + pieces; ++i)
      out[i] = MasterOf(weights[i].bits, remainders[i]);
  });
}

void SgdUpdate(const Stream& stream, const SgdOptions& options,
               absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
               const Tensor& buffer_N, const Tensor& master_N, const Tensor& out_N) {
  CheckUpdate(stream, segments, grad_N, master_N, out_N);
  CHECK_EQ(buffer_N.empty(), options.momentum == 0);
  if (!buffer_N.empty()) CheckFlat(stream, buffer_N, grad_N.numel());
  if (RunsOnCuda(stream)) {
    return OnCuda<SgdUpdate>(stream, options, segments, grad_N, buffer_N, master_N, out_N);
  }
  if (!RunsOnCpu(stream)) return;
  for (const OptimizerSegment& segment : segments) {
    const SgdStep step = {options.grad_scale, segment.weight_decay, options.momentum, segment.lr};
    ForEachPiece(stream, segment, {grad_N, buffer_N, Tensor(), master_N, out_N},
                 [&](const OptimizerPointers& at) { Kernels().sgd(step, at); });
  }
}

void LionUpdate(const Stream& stream, const LionOptions& options,
                absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
                const Tensor& m_N, const Tensor& master_N, const Tensor& out_N) {
  CheckUpdate(stream, segments, grad_N, master_N, out_N);
  CheckFlat(stream, m_N, grad_N.numel());
  if (RunsOnCuda(stream))
    return OnCuda<LionUpdate>(stream, options, segments, grad_N, m_N, master_N, out_N);
  if (!RunsOnCpu(stream)) return;
  for (const OptimizerSegment& segment : segments) {
    LionStep step;
    step.beta1 = static_cast<float>(options.beta1);
    step.one_minus_beta1 = static_cast<float>(1 - options.beta1);
    step.beta2 = static_cast<float>(options.beta2);
    step.one_minus_beta2 = static_cast<float>(1 - options.beta2);
    step.grad_scale = options.grad_scale;
    step.keep = static_cast<float>(1 - static_cast<double>(segment.lr) * segment.weight_decay);
    step.lr = segment.lr;
    ForEachPiece(stream, segment, {grad_N, m_N, Tensor(), master_N, out_N},
                 [&](const OptimizerPointers& at) { Kernels().lion(step, at); });
  }
}

void SumOfSquares(const Stream& stream, float scale, const Tensor& x_N, const Tensor& out_2) {
  const int64_t count = x_N.numel();
  CheckFlat(stream, x_N, count);
  CheckFlat(stream, out_2, 2);
  if (RunsOnCuda(stream)) return OnCuda<SumOfSquares>(stream, scale, x_N, out_2);
  if (!RunsOnCpu(stream)) return;
  constexpr int64_t kTile = 16384;
  const int64_t tiles = (count + kTile - 1) / kTile;
  float* const sums = Workspace(WorkspaceKind::kShared, 2 * tiles);
  stream.pool()->ParallelFor(tiles, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      bool finite;
      sums[2 * tile] = Kernels().sum_of_squares(scale, x_N.data<float>() + tile * kTile,
                                                std::min(kTile, count - tile * kTile), &finite);
      sums[2 * tile + 1] = finite ? 0 : 1;
    }
  });
  float* out = out_2.data<float>();
  double sum = out[0];
  for (int64_t tile = 0; tile < tiles; ++tile) {
    sum += sums[2 * tile];
    if (sums[2 * tile + 1] != 0) out[1] = 1;
  }
  out[0] = static_cast<float>(sum);
}

void CountZeros(const Stream& stream, const Tensor& x_N, const Tensor& out_1) {
  CheckFlat(stream, x_N, x_N.numel());
  CheckContiguous(stream, out_1, DType::kInt64, {1});
  if (RunsOnCuda(stream)) return OnCuda<CountZeros>(stream, x_N, out_1);
  if (!RunsOnCpu(stream)) return;
  const float* const x = x_N.data<float>();
  std::atomic<int64_t> zeros{0};
  stream.pool()->ParallelFor(x_N.numel(), [&](int64_t begin, int64_t end) {
    zeros += std::count(x + begin, x + end, 0.0f);
  });
  *out_1.data<int64_t>() += zeros;
}

}  // namespace megatron::ops
