#include "megatron/ops/dropout.h"

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/row_kernels.h"
#include "megatron/ops/cpu/rows.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {

void CheckDropout(const Stream& stream, const Dropout& dropout, int64_t tokens) {
  CHECK(dropout.probability >= 0 && dropout.probability < 1) << dropout.probability;
  if (dropout.probability == 0) return;
  CheckContiguous(stream, dropout.sample_T, DType::kInt64, {tokens});
  CheckContiguous(stream, dropout.position_T, DType::kInt32, {tokens});
}

RowDropout DropoutOfRow(const Dropout& dropout, int64_t row) {
  RowDropout out;
  if (dropout.probability == 0) return out;
  out.key = dropout.key;
  out.threshold = static_cast<uint32_t>(static_cast<double>(dropout.probability) * 4294967296.0);
  out.scale = 1.0f / (1.0f - dropout.probability);
  out.sample = static_cast<uint64_t>(dropout.sample_T.data<int64_t>()[row]);
  out.position = static_cast<uint32_t>(dropout.position_T.data<int32_t>()[row]);
  out.first_column = dropout.first_column;
  return out;
}

void BiasDropoutAdd(const Stream& stream, const Dropout& dropout, const Tensor& x_TH,
                    const Tensor& bias_H, const Tensor& residual_TH, const Tensor& out_TH) {
  CheckFloating(x_TH);
  const DType dtype = x_TH.dtype();
  const int64_t tokens = x_TH.dim(0), columns = x_TH.dim(1);
  CheckContiguous(stream, x_TH, dtype, {tokens, columns});
  if (!bias_H.empty()) CheckContiguous(stream, bias_H, dtype, {columns});
  if (!residual_TH.empty()) CheckContiguous(stream, residual_TH, dtype, {tokens, columns});
  CheckContiguous(stream, out_TH, dtype, {tokens, columns});
  CheckDropout(stream, dropout, tokens);
  if (RunsOnCuda(stream)) {
    return OnCuda<BiasDropoutAdd>(stream, dropout, x_TH, bias_H, residual_TH, out_TH);
  }
  if (!RunsOnCpu(stream)) return;
  ParallelRows(stream.pool(), tokens, columns, [&](int64_t row) {
    ActiveRowKernels().bias_dropout_add(dtype, DropoutOfRow(dropout, row), RowOf(x_TH, row),
                                        bias_H.raw(), RowOf(residual_TH, row), RowOf(out_TH, row),
                                        columns);
  });
}

void DropoutBackward(const Stream& stream, const Dropout& dropout, const Tensor& dy_TH,
                     const Tensor& dx_TH, const Tensor& dbias_H) {
  CheckFloating(dy_TH);
  const DType dtype = dy_TH.dtype();
  const int64_t tokens = dy_TH.dim(0), columns = dy_TH.dim(1);
  CheckContiguous(stream, dy_TH, dtype, {tokens, columns});
  CheckContiguous(stream, dx_TH, dtype, {tokens, columns});
  if (!dbias_H.empty()) CheckContiguous(stream, dbias_H, DType::kFloat32, {columns});
  CheckDropout(stream, dropout, tokens);
  if (RunsOnCuda(stream)) return OnCuda<DropoutBackward>(stream, dropout, dy_TH, dx_TH, dbias_H);
  if (!RunsOnCpu(stream)) return;
  const auto backward = [&](int64_t row, float* sums) {
    ActiveRowKernels().dropout_backward(dtype, DropoutOfRow(dropout, row), RowOf(dy_TH, row),
                                        RowOf(dx_TH, row), sums, columns);
  };
  if (dbias_H.empty()) {
    ParallelRows(stream.pool(), tokens, columns, [&](int64_t row) { backward(row, nullptr); });
  } else {
    ParallelRowsWithSums(stream.pool(), tokens, {columns, {dbias_H.data<float>(), nullptr}},
                         backward);
  }
}

void Jitter(const Stream& stream, float eps, const Dropout& random, const Tensor& x_TH,
            const Tensor& out_TH) {
  const int64_t tokens = x_TH.dim(0), columns = x_TH.dim(1);
  CheckContiguous(stream, x_TH, DType::kFloat32, {tokens, columns});
  CheckContiguous(stream, out_TH, DType::kFloat32, {tokens, columns});
  CheckContiguous(stream, random.sample_T, DType::kInt64, {tokens});
  CheckContiguous(stream, random.position_T, DType::kInt32, {tokens});
  CHECK_EQ(random.first_column, 0);
  if (RunsOnCuda(stream)) return OnCuda<Jitter>(stream, eps, random, x_TH, out_TH);
  if (!RunsOnCpu(stream)) return;
  ParallelRows(stream.pool(), tokens, columns, [&](int64_t row) {
    const auto sample = static_cast<uint64_t>(random.sample_T.data<int64_t>()[row]);
    const auto position = static_cast<uint32_t>(random.position_T.data<int32_t>()[row]);
    const float* const x = x_TH.data<float>() + row * columns;
    float* const out = out_TH.data<float>() + row * columns;
    for (int64_t c = 0; c < columns; c += 4) {
      const PhiloxBlock words =
          Philox(random.key, {{static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32),
                               position, static_cast<uint32_t>(c / 4)}});
      for (int64_t i = 0; i < 4 && c + i < columns; ++i)
        out[c + i] = x[c + i] * (1 + eps * (2 * UniformOpenZero(words.word[i]) - 1));
    }
  });
}

}  // namespace megatron::ops
