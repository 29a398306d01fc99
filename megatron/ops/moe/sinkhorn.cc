#include "megatron/ops/moe/sinkhorn.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "glog/logging.h"
#include "megatron/ops/checks.h"
#include "megatron/ops/cuda/kernel_table.h"

namespace megatron::ops {
namespace {

// exp(logits), with each row divided by its greatest entry, which the row's factor makes up for.
std::vector<double> Exponentials(const Tensor& logits_TE) {
  const int64_t experts = logits_TE.dim(1);
  std::vector<double> values(logits_TE.numel());
  for (int64_t t = 0; t < logits_TE.dim(0); ++t) {
    const float* const row = logits_TE.data<float>() + t * experts;
    const double most = *std::max_element(row, row + experts);
    for (int64_t e = 0; e < experts; ++e) values[t * experts + e] = std::exp(row[e] - most);
  }
  return values;
}

// Returns the columns' factors of the next round: rows are normalized with `factor`, then columns.
std::vector<double> Round(const std::vector<double>& values, const std::vector<double>& factor) {
  const size_t experts = factor.size(), tokens = values.size() / experts;
  std::vector<double> sums(experts);
  for (size_t t = 0; t < tokens; ++t) {
    const double* const row = &values[t * experts];
    double sum = 0;
    for (size_t e = 0; e < experts; ++e) sum += factor[e] * row[e];
    const double of_row = 1 / (static_cast<double>(tokens) * (sum + kSinkhornEpsilon));
    for (size_t e = 0; e < experts; ++e) sums[e] += of_row * row[e];
  }
  for (double& sum : sums) sum = 1 / (static_cast<double>(experts) * (sum + kSinkhornEpsilon));
  return sums;
}

}  // namespace

void SinkhornBias(const Stream& stream, const Tensor& logits_TE, const Tensor& bias_E) {
  CHECK_EQ(logits_TE.rank(), 2) << logits_TE;
  CheckContiguous(stream, logits_TE, DType::kFloat32, logits_TE.shape());
  CheckContiguous(stream, bias_E, DType::kFloat32, {logits_TE.dim(1)});
  CHECK_GE(logits_TE.dim(0), 1);
  if (RunsOnCuda(stream)) return OnCuda<SinkhornBias>(stream, logits_TE, bias_E);
  if (!RunsOnCpu(stream)) return;
  const std::vector<double> values = Exponentials(logits_TE);
  std::vector<double> factor(bias_E.numel(), 1);
  for (int round = 0; round < kMostSinkhornRounds; ++round) {
    const std::vector<double> next = Round(values, factor);
    double change = 0;
    for (size_t e = 0; e < factor.size(); ++e) change += std::fabs(next[e] - factor[e]);
    factor = next;
    if (change <= kSinkhornTolerance * static_cast<double>(factor.size())) break;
  }
  for (size_t e = 0; e < factor.size(); ++e)
    bias_E.data<float>()[e] = static_cast<float>(std::log(factor[e]));
}

}  // namespace megatron::ops
