#include "megatron/ops/rope.h"

#include <cmath>

#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cpu/rope_kernels.h"
#include "megatron/ops/cpu/workspace.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

void CheckTables(const Tensor& cos_SP, const Tensor& sin_SP) {
  for (const Tensor* table : {&cos_SP, &sin_SP}) {
    CHECK_EQ(table->rank(), 2) << *table;
    CHECK_EQ(table->shape(), cos_SP.shape());
    CHECK_EQ(table->dtype(), DType::kFloat32);
    CHECK(table->is_contiguous()) << *table;
  }
}

void CheckPositions(const Tensor& position_T, int64_t positions) {
  const int32_t* position = position_T.data<int32_t>();
  for (int64_t t = 0; t < position_T.dim(0); ++t) {
    CHECK(position[t] >= 0 && position[t] < positions)
        << "position " << position[t] << " of a table of " << positions;
  }
}

}  // namespace

void FillRopeTables(const double* inverse_frequency, const Tensor& cos_SP, const Tensor& sin_SP,
                    double magnitude) {
  CheckTables(cos_SP, sin_SP);
  if (cos_SP.device().type == DeviceType::kMeta) return;
  CHECK(cos_SP.device().type == DeviceType::kCpu)
      << "tables are filled on the CPU, not in " << cos_SP;
  float *cos = cos_SP.data<float>(), *sin = sin_SP.data<float>();
  const int64_t pairs = cos_SP.dim(1);
  for (int64_t s = 0; s < cos_SP.dim(0); ++s) {
    for (int64_t p = 0; p < pairs; ++p) {
      const double angle = static_cast<double>(s) * inverse_frequency[p];
      cos[s * pairs + p] = static_cast<float>(magnitude * std::cos(angle));
      sin[s * pairs + p] = static_cast<float>(magnitude * std::sin(angle));
    }
  }
}

void Rope(const Stream& stream, const Tensor& cos_SP, const Tensor& sin_SP,
          const Tensor& position_T, bool interleaved, bool inverse, const Tensor& x) {
  CheckTables(cos_SP, sin_SP);
  CHECK(x.rank() == 3 || x.rank() == 4) << x;
  CheckFloating(x);
  CHECK(x.stride(-1) == 1) << "the last dim of " << x << " is not contiguous";
  CHECK_LE(2 * cos_SP.dim(1), x.dim(-1));
  CheckContiguous(stream, position_T, DType::kInt32, {x.dim(0)});
  for (const Tensor* operand : {&cos_SP, &sin_SP, &x}) CHECK_EQ(operand->device(), stream.device());
  if (RunsOnCuda(stream)) {
    return OnCuda<Rope>(stream, cos_SP, sin_SP, position_T, interleaved, inverse, x);
  }
  if (!RunsOnCpu(stream)) return;
  CheckPositions(position_T, cos_SP.dim(0));

  RopeRotation rotation;
  rotation.cos = cos_SP.data<float>();
  rotation.sin = sin_SP.data<float>();
  rotation.pairs = cos_SP.dim(1);
  rotation.position = position_T.data<int32_t>();
  rotation.interleaved = interleaved;
  rotation.inverse = inverse;
  rotation.dtype = x.dtype();
  rotation.x = x.raw();
  rotation.outer_heads = x.dim(1);
  rotation.token_stride = x.stride(0);
  rotation.outer_stride = x.stride(1);
  if (x.rank() == 4) {
    rotation.inner_heads = x.dim(2);
    rotation.inner_stride = x.stride(2);
  }
  const auto kernel = ActiveIsa() == CpuIsa::kAvx512 ? avx512::RopeTokens : avx2::RopeTokens;
  stream.pool()->ParallelFor(x.dim(0), [&](int64_t begin, int64_t end) {
    kernel(rotation, begin, end, Workspace(WorkspaceKind::kPrivate, 4 * rotation.pairs));
  });
}

}  // namespace megatron::ops
