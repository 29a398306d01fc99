#include "megatron/ops/elementwise.h"

#include <algorithm>
#include <cstring>

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/elementwise_kernels.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cpu/parallel_elements.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

const ElementwiseKernels& Kernels() {
  return ActiveIsa() == CpuIsa::kAvx512 ? avx512::kElementwiseKernels : avx2::kElementwiseKernels;
}

char* At(const Tensor& tensor, int64_t offset) {
  return static_cast<char*>(tensor.raw()) + offset * SizeOf(tensor.dtype());
}

// Copies `count` contiguous elements.
void CopyRun(const Tensor& in, int64_t in_offset, const Tensor& out, int64_t out_offset,
             int64_t count) {
  if (in.dtype() == out.dtype()) {
    std::memcpy(At(out, out_offset), At(in, in_offset), count * SizeOf(in.dtype()));
  } else {
    Kernels().convert(in.dtype(), At(in, in_offset), out.dtype(), At(out, out_offset), count);
  }
}

// The offset of row `row`, an index over all dims but the last.
int64_t RowOffset(const Tensor& tensor, int64_t row) {
  int64_t offset = 0;
  for (int d = tensor.rank() - 2; d >= 0; --d) {
    offset += row % tensor.dim(d) * tensor.stride(d);
    row /= tensor.dim(d);
  }
  return offset;
}

void CopyRow(const Tensor& in, const Tensor& out, int64_t row) {
  const int64_t size = in.dim(-1);
  const int64_t from = RowOffset(in, row), to = RowOffset(out, row);
  if (in.stride(-1) == 1 && out.stride(-1) == 1) return CopyRun(in, from, out, to, size);
  for (int64_t i = 0; i < size; ++i) {
    CopyRun(in, from + i * in.stride(-1), out, to + i * out.stride(-1), 1);
  }
}

}  // namespace

void Copy(const Stream& stream, const Tensor& in, const Tensor& out) {
  CheckTensor(stream, in, in.dtype(), in.shape());
  CheckTensor(stream, out, out.dtype(), in.shape());
  if (in.dtype() != out.dtype()) {
    CheckFloating(in);
    CheckFloating(out);
  }
  if (RunsOnCuda(stream)) return OnCuda<Copy>(stream, in, out);
  if (!RunsOnCpu(stream) || in.numel() == 0) return;
  if (in.is_contiguous() && out.is_contiguous()) {
    ParallelElements(stream.pool(), in.numel(), kElementGrain,
                     [&](int64_t begin, int64_t count) { CopyRun(in, begin, out, begin, count); });
    return;
  }
  const int64_t row_grain = std::max<int64_t>(1, kElementGrain / in.dim(-1));
  ParallelElements(stream.pool(), in.numel() / in.dim(-1), row_grain,
                   [&](int64_t begin, int64_t count) {
                     for (int64_t row = begin; row < begin + count; ++row) CopyRow(in, out, row);
                   });
}

void Add(const Stream& stream, const Tensor& in, const Tensor& out) {
  CheckFloating(in);
  CheckFloating(out);
  CHECK(in.dtype() == out.dtype() || in.dtype() == DType::kFloat32)
      << in.dtype() << " added to " << out.dtype();
  CheckContiguous(stream, in, in.dtype(), in.shape());
  CheckContiguous(stream, out, out.dtype(), in.shape());
  if (RunsOnCuda(stream)) return OnCuda<Add>(stream, in, out);
  if (!RunsOnCpu(stream)) return;
  ParallelElements(stream.pool(), in.numel(), kElementGrain, [&](int64_t begin, int64_t count) {
    Kernels().add(in.dtype(), At(in, begin), out.dtype(), At(out, begin), count);
  });
}

void Scale(const Stream& stream, float factor, const Tensor& out) {
  CheckFloating(out);
  CheckContiguous(stream, out, out.dtype(), out.shape());
  if (RunsOnCuda(stream)) return OnCuda<Scale>(stream, factor, out);
  if (!RunsOnCpu(stream)) return;
  ParallelElements(stream.pool(), out.numel(), kElementGrain, [&](int64_t begin, int64_t count) {
    Kernels().scale(out.dtype(), factor, At(out, begin), count);
  });
}

void SoftCap(const Stream& stream, float cap, const Tensor& x) {
  CHECK_GT(cap, 0);
  CheckFloating(x);
  CheckContiguous(stream, x, x.dtype(), x.shape());
  if (RunsOnCuda(stream)) return OnCuda<SoftCap>(stream, cap, x);
  if (!RunsOnCpu(stream)) return;
  ParallelElements(stream.pool(), x.numel(), kElementGrain, [&](int64_t begin, int64_t count) {
    Kernels().soft_cap(x.dtype(), cap, At(x, begin), count);
  });
}

void Zero(const Stream& stream, const Tensor& out) {
  CheckContiguous(stream, out, out.dtype(), out.shape());
  if (RunsOnCuda(stream)) return OnCuda<Zero>(stream, out);
  if (!RunsOnCpu(stream)) return;
  ParallelElements(stream.pool(), out.numel(), kElementGrain, [&](int64_t begin, int64_t count) {
    std::memset(At(out, begin), 0, count * SizeOf(out.dtype()));
  });
}

}  // namespace megatron::ops
