#include "megatron/ops/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cpu/cross_entropy_kernels.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

void CheckRows(const Stream& stream, std::initializer_list<const Tensor*> rows, int64_t tokens) {
  for (const Tensor* x_T : rows) CheckContiguous(stream, *x_T, DType::kFloat32, {tokens});
}

void CheckLogits(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                 const VocabRange& range) {
  CHECK_EQ(logits_TV.rank(), 2) << logits_TV;
  CheckFloating(logits_TV);
  CheckContiguous(stream, logits_TV, logits_TV.dtype(), logits_TV.shape());
  CheckContiguous(stream, labels_T, DType::kInt32, {logits_TV.dim(0)});
  CHECK_GE(range.first_column, 0);
  CHECK_GT(range.vocab_size, 0);
}

CrossEntropyRows MakeRows(const Tensor& logits_TV, const Tensor& labels_T,
                          const VocabRange& range) {
  CrossEntropyRows rows;
  rows.dtype = logits_TV.dtype();
  rows.logits = logits_TV.raw();
  rows.columns = logits_TV.dim(1);
  rows.counted = std::clamp<int64_t>(range.vocab_size - range.first_column, 0, rows.columns);
  rows.first_column = range.first_column;
  rows.labels = labels_T.data<int32_t>();
  return rows;
}

using Kernel = void (*)(const CrossEntropyRows&, int64_t, int64_t);

Kernel StatisticsKernel() {
  return ActiveIsa() == CpuIsa::kAvx512 ? avx512::CrossEntropyStatisticsRows
                                        : avx2::CrossEntropyStatisticsRows;
}

Kernel BackwardKernel() {
  return ActiveIsa() == CpuIsa::kAvx512 ? avx512::CrossEntropyBackwardRows
                                        : avx2::CrossEntropyBackwardRows;
}

float LossOf(float max, float sum, float target) { return std::log(sum) + (max - target); }
float HitOf(float max, float target) { return target >= max ? 1.0f : 0.0f; }

void Run(const Stream& stream, const CrossEntropyRows& rows, int64_t tokens, Kernel kernel) {
  stream.pool()->ParallelFor(tokens, [&](int64_t begin, int64_t end) { kernel(rows, begin, end); });
}

}  // namespace

void CrossEntropyStatistics(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                            const VocabRange& range, const Tensor& max_T, const Tensor& sum_T,
                            const Tensor& target_T) {
  CheckLogits(stream, logits_TV, labels_T, range);
  const int64_t tokens = logits_TV.dim(0);
  CheckRows(stream, {&max_T, &sum_T, &target_T}, tokens);
  if (RunsOnCuda(stream)) {
    return OnCuda<CrossEntropyStatistics>(stream, logits_TV, labels_T, range, max_T, sum_T,
                                          target_T);
  }
  if (!RunsOnCpu(stream)) return;
  CrossEntropyRows rows = MakeRows(logits_TV, labels_T, range);
  rows.max = max_T.data<float>();
  rows.sum = sum_T.data<float>();
  rows.target = target_T.data<float>();
  Run(stream, rows, tokens, StatisticsKernel());
}

void RescaleSum(const Stream& stream, const Tensor& old_max_T, const Tensor& new_max_T,
                const Tensor& sum_T) {
  CheckRows(stream, {&old_max_T, &new_max_T, &sum_T}, sum_T.dim(0));
  if (RunsOnCuda(stream)) return OnCuda<RescaleSum>(stream, old_max_T, new_max_T, sum_T);
  if (!RunsOnCpu(stream)) return;
  const float *old_max = old_max_T.data<float>(), *new_max = new_max_T.data<float>();
  float* sum = sum_T.data<float>();
  for (int64_t t = 0; t < sum_T.dim(0); ++t) {
    // Equal maxima may both be infinite.
    if (old_max[t] != new_max[t]) sum[t] *= std::exp(old_max[t] - new_max[t]);
  }
}

void CrossEntropyLoss(const Stream& stream, const Tensor& max_T, const Tensor& sum_T,
                      const Tensor& target_T, const Tensor& loss_T) {
  CheckRows(stream, {&max_T, &sum_T, &target_T, &loss_T}, loss_T.dim(0));
  if (RunsOnCuda(stream)) return OnCuda<CrossEntropyLoss>(stream, max_T, sum_T, target_T, loss_T);
  if (!RunsOnCpu(stream)) return;
  const float *max = max_T.data<float>(), *sum = sum_T.data<float>(),
              *target = target_T.data<float>();
  float* loss = loss_T.data<float>();
  for (int64_t t = 0; t < loss_T.dim(0); ++t) loss[t] = LossOf(max[t], sum[t], target[t]);
}

void CrossEntropyHits(const Stream& stream, const Tensor& max_T, const Tensor& target_T,
                      const Tensor& hit_T) {
  CheckRows(stream, {&max_T, &target_T, &hit_T}, hit_T.dim(0));
  if (RunsOnCuda(stream)) return OnCuda<CrossEntropyHits>(stream, max_T, target_T, hit_T);
  if (!RunsOnCpu(stream)) return;
  const float *max = max_T.data<float>(), *target = target_T.data<float>();
  float* hit = hit_T.data<float>();
  for (int64_t t = 0; t < hit_T.dim(0); ++t) hit[t] = HitOf(max[t], target[t]);
}

void CrossEntropyBackward(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                          const VocabRange& range, const Tensor& max_T, const Tensor& sum_T,
                          const Tensor& weight_T, float softcap) {
  CheckLogits(stream, logits_TV, labels_T, range);
  const int64_t tokens = logits_TV.dim(0);
  CheckRows(stream, {&max_T, &sum_T, &weight_T}, tokens);
  if (RunsOnCuda(stream)) {
    return OnCuda<CrossEntropyBackward>(stream, logits_TV, labels_T, range, max_T, sum_T, weight_T,
                                        softcap);
  }
  if (!RunsOnCpu(stream)) return;
  CrossEntropyRows rows = MakeRows(logits_TV, labels_T, range);
  rows.max = max_T.data<float>();
  rows.sum = sum_T.data<float>();
  rows.weight = weight_T.data<float>();
  rows.softcap = softcap;
  Run(stream, rows, tokens, BackwardKernel());
}

void CrossEntropy(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                  const VocabRange& range, const Tensor& weight_T, const Tensor& loss_T,
                  const Tensor& hit_T, float softcap) {
  CheckLogits(stream, logits_TV, labels_T, range);
  CHECK_EQ(range.first_column, 0);
  CHECK_LE(range.vocab_size, logits_TV.dim(1));
  const int64_t tokens = logits_TV.dim(0);
  CheckRows(stream, {&loss_T}, tokens);
  if (!weight_T.empty()) CheckRows(stream, {&weight_T}, tokens);
  if (!hit_T.empty()) CheckRows(stream, {&hit_T}, tokens);
  if (RunsOnCuda(stream)) {
    return OnCuda<CrossEntropy>(stream, logits_TV, labels_T, range, weight_T, loss_T, hit_T,
                                softcap);
  }
  if (!RunsOnCpu(stream)) return;
  CrossEntropyRows rows = MakeRows(logits_TV, labels_T, range);
  rows.softcap = softcap;
  const int64_t row_bytes = rows.columns * SizeOf(rows.dtype);
  const Kernel statistics = StatisticsKernel(), backward = BackwardKernel();
  stream.pool()->ParallelFor(tokens, [&](int64_t begin, int64_t end) {
    // The gradient of a row follows its loss, while caches have the row.
    for (int64_t t = begin; t < end; ++t) {
      float max, sum, target;
      CrossEntropyRows row = rows;
      row.logits = static_cast<char*>(rows.logits) + t * row_bytes;
      row.labels = rows.labels + t;
      row.max = &max;
      row.sum = &sum;
      row.target = &target;
      statistics(row, 0, 1);
      loss_T.data<float>()[t] = LossOf(max, sum, target);
      if (!hit_T.empty()) hit_T.data<float>()[t] = HitOf(max, target);
      if (weight_T.empty()) continue;
      row.weight = weight_T.data<float>() + t;
      backward(row, 0, 1);
    }
  });
}

}  // namespace megatron::ops
