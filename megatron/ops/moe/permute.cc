#include "megatron/ops/moe/permute.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cpu/moe_row_kernels.h"
#include "megatron/ops/cpu/parallel_elements.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

const MoeRowKernels& Kernels() {
  return ActiveIsa() == CpuIsa::kAvx512 ? avx512::kMoeRowKernels : avx2::kMoeRowKernels;
}

void CheckPlaces(const Stream& stream, const Tensor& token_TH, const Tensor& row_RH,
                 const Tensor& place_TKC) {
  CheckFloating(token_TH);
  CHECK_EQ(place_TKC.rank(), 3) << place_TKC;
  CheckContiguous(stream, token_TH, token_TH.dtype(), {place_TKC.dim(0), token_TH.dim(1)});
  CheckContiguous(stream, row_RH, token_TH.dtype(), {row_RH.dim(0), token_TH.dim(1)});
  CheckContiguous(stream, place_TKC, DType::kInt32, place_TKC.shape());
}

char* Row(const Tensor& x, int64_t row) {
  return static_cast<char*>(x.raw()) + row * x.dim(1) * SizeOf(x.dtype());
}

const int32_t* Places(const Tensor& place_TKC, int64_t token) {
  return place_TKC.data<int32_t>() + token * place_TKC.dim(1) * place_TKC.dim(2);
}

// Calls body(token) for all tokens, each about as much work as so many elements.
template <typename Body>
void ForEachToken(const Stream& stream, const Tensor& x_TH, int64_t rows, const Body& body) {
  const int64_t elements = std::max<int64_t>(1, rows * x_TH.dim(1));
  const int64_t grain = std::max<int64_t>(1, kElementGrain / elements);
  ParallelElements(stream.pool(), x_TH.dim(0), grain, [&](int64_t begin, int64_t count) {
    for (int64_t t = begin; t < begin + count; ++t) body(t);
  });
}

}  // namespace

void PlaceByExpert(const Stream& stream, const Tensor& expert_TK, const Tensor& place_TKC,
                   const Tensor& rows_RCL, int64_t padded, int64_t parts) {
  const int64_t copies = place_TKC.dim(2), ranks = rows_RCL.dim(0), at_once = rows_RCL.dim(2);
  CheckContiguous(stream, expert_TK, DType::kInt32, {expert_TK.dim(0), expert_TK.dim(1)});
  CheckContiguous(stream, place_TKC, DType::kInt32, {expert_TK.dim(0), expert_TK.dim(1), copies});
  CheckContiguous(stream, rows_RCL, DType::kInt64, {ranks, copies, at_once});
  CHECK_GE(parts, 1);
  if (RunsOnCuda(stream))
    return OnCuda<PlaceByExpert>(stream, expert_TK, place_TKC, rows_RCL, padded, parts);
  if (!RunsOnCpu(stream)) return;
  std::vector<int64_t> counts(ranks * at_once);
  const int32_t* const expert = expert_TK.data<int32_t>();
  for (int64_t i = 0; i < expert_TK.numel(); ++i) {
    if (expert[i] >= 0) ++counts[expert[i]];
  }
  // The row of the next choice, by rank, copy and expert.
  std::vector<int64_t> next(rows_RCL.numel());
  int64_t end = 0;
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t i = 0; i < rows_RCL.numel(); ++i) {
      const int64_t local = i % at_once;
      if (local * parts / at_once != part) continue;
      int64_t count = counts[i / (copies * at_once) * at_once + local];
      if (padded > 0) {
        CHECK_LE(count, padded);
        count = padded;
      }
      rows_RCL.data<int64_t>()[i] = count;
      next[i] = end;
      end += count;
    }
  }
  int32_t* const place = place_TKC.data<int32_t>();
  for (int64_t i = 0; i < expert_TK.numel(); ++i) {
    const int64_t e = expert[i];
    for (int64_t c = 0; c < copies; ++c) {
      place[i * copies + c] =
          e < 0 ? -1
                : static_cast<int32_t>(next[(e / at_once * copies + c) * at_once + e % at_once]++);
    }
  }
}

void Permute(const Stream& stream, const Tensor& x_TH, const Tensor& place_TKC,
             const Tensor& out_RH) {
  CheckPlaces(stream, x_TH, out_RH, place_TKC);
  if (RunsOnCuda(stream)) return OnCuda<Permute>(stream, x_TH, place_TKC, out_RH);
  if (!RunsOnCpu(stream)) return;
  const int64_t rows = place_TKC.dim(1) * place_TKC.dim(2);
  const size_t bytes = static_cast<size_t>(x_TH.dim(1) * SizeOf(x_TH.dtype()));
  ForEachToken(stream, x_TH, rows, [&](int64_t t) {
    const int32_t* const place = Places(place_TKC, t);
    for (int64_t i = 0; i < rows; ++i) {
      if (place[i] >= 0) std::memcpy(Row(out_RH, place[i]), Row(x_TH, t), bytes);
    }
  });
}

void PermuteBackward(const Stream& stream, const Tensor& dout_RH, const Tensor& place_TKC,
                     const Tensor& dx_TH) {
  CheckPlaces(stream, dx_TH, dout_RH, place_TKC);
  if (RunsOnCuda(stream)) return OnCuda<PermuteBackward>(stream, dout_RH, place_TKC, dx_TH);
  if (!RunsOnCpu(stream)) return;
  const int64_t rows = place_TKC.dim(1) * place_TKC.dim(2);
  ForEachToken(stream, dx_TH, rows, [&](int64_t t) {
    Kernels().sum_rows({dx_TH.dtype(), dx_TH.dim(1), dout_RH.raw(), Places(place_TKC, t), rows, 1},
                       nullptr, Row(dx_TH, t));
  });
}

void Unpermute(const Stream& stream, const Tensor& x_RH, const Tensor& place_TKC,
               const Tensor& probability_TK, const Tensor& y_TH) {
  CheckPlaces(stream, y_TH, x_RH, place_TKC);
  const int64_t topk = place_TKC.dim(1), copies = place_TKC.dim(2);
  CheckContiguous(stream, probability_TK, DType::kFloat32, {y_TH.dim(0), topk});
  if (RunsOnCuda(stream)) return OnCuda<Unpermute>(stream, x_RH, place_TKC, probability_TK, y_TH);
  if (!RunsOnCpu(stream)) return;
  ForEachToken(stream, y_TH, topk * copies, [&](int64_t t) {
    Kernels().sum_rows(
        {y_TH.dtype(), y_TH.dim(1), x_RH.raw(), Places(place_TKC, t), topk * copies, copies},
        probability_TK.data<float>() + t * topk, Row(y_TH, t));
  });
}

void UnpermuteBackward(const Stream& stream, const Tensor& dy_TH, const Tensor& x_RH,
                       const Tensor& place_TKC, const Tensor& probability_TK, const Tensor& dx_RH,
                       const Tensor& dprobability_TK) {
  CheckPlaces(stream, dy_TH, x_RH, place_TKC);
  const int64_t topk = place_TKC.dim(1), copies = place_TKC.dim(2);
  CheckContiguous(stream, dx_RH, x_RH.dtype(), x_RH.shape());
  CheckContiguous(stream, probability_TK, DType::kFloat32, {dy_TH.dim(0), topk});
  CheckContiguous(stream, dprobability_TK, DType::kFloat32, {dy_TH.dim(0), topk});
  if (RunsOnCuda(stream)) {
    return OnCuda<UnpermuteBackward>(stream, dy_TH, x_RH, place_TKC, probability_TK, dx_RH,
                                     dprobability_TK);
  }
  if (!RunsOnCpu(stream)) return;
  ForEachToken(stream, dy_TH, 2 * topk * copies, [&](int64_t t) {
    const int32_t* const place = Places(place_TKC, t);
    for (int64_t k = 0; k < topk; ++k) {
      const float probability = probability_TK.data<float>()[t * topk + k];
      float& dprobability = dprobability_TK.data<float>()[t * topk + k];
      dprobability = 0;
      for (int64_t c = 0; c < copies; ++c) {
        const int32_t row = place[k * copies + c];
        if (row < 0) continue;
        dprobability += Kernels().scale_row_and_dot(dy_TH.dtype(), dy_TH.dim(1), Row(dy_TH, t),
                                                    Row(x_RH, row), probability, Row(dx_RH, row));
      }
    }
  });
}

}  // namespace megatron::ops
