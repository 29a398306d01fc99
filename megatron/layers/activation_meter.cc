#include "megatron/layers/activation_meter.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/float8/quantize.h"
#include "megatron/ops/optimizer.h"

namespace megatron {
namespace {

constexpr int64_t kPart = int64_t{1} << 18, kZeros = int64_t{1} << 14;

}  // namespace

ActivationMeter::ActivationMeter(const Sums& sums, bool adds, MemoryLedger* ledger)
    : sums_(sums),
      adds_(adds),
      converted_(sums.squares_L2.device(), kPart * SizeOf(DType::kFloat32), "diagnostics", ledger),
      zeros_(sums.squares_L2.device(), kZeros * SizeOf(DType::kFloat32), "diagnostics", ledger),
      statistics_(sums.squares_L2.device(), 3 * SizeOf(DType::kFloat32), "diagnostics", ledger) {}

void ActivationMeter::StartStep(const Stream& stream) {
  ops::Zero(stream, zeros_.At(0, DType::kFloat32, {kZeros}));
  for (std::vector<int64_t>* counts : {&outputs_L_, &scores_L_})
    counts->assign(sums_.largest_LP.dim(0), 0);
}

Tensor ActivationMeter::PlaceOf(const Tensor& sums_LP, int64_t layer,
                                std::vector<int64_t>* passes_L) const {
  const int64_t pass = (*passes_L)[layer]++;
  CHECK_LT(pass, sums_LP.dim(1)) << "layer " << layer;
  return sums_LP.Select(0, layer).Slice(0, pass, pass + 1);
}

void ActivationMeter::AddSquares(const Stream& stream, const Tensor& x_N,
                                 const Tensor& sum_2) const {
  for (int64_t begin = 0; begin < x_N.numel(); begin += kPart) {
    Tensor part = x_N.Slice(0, begin, std::min(begin + kPart, x_N.numel()));
    if (part.dtype() != DType::kFloat32) {
      const Tensor converted = converted_.At(0, DType::kFloat32, part.shape());
      ops::Copy(stream, part, converted);
      part = converted;
    }
    ops::SumOfSquares(stream, 1, part, sum_2);
  }
}

void ActivationMeter::AddRows(const Stream& stream, int64_t rows, const Tensor& sum_1) const {
  for (int64_t begin = 0; begin < rows; begin += kZeros) {
    const int64_t count = std::min(kZeros, rows - begin);
    ops::CountZeros(stream, zeros_.At(0, DType::kFloat32, {count}), sum_1);
  }
}

void ActivationMeter::AddOutput(const Stream& stream, int64_t layer, const Tensor& y_TH) {
  ops::AbsMax(stream, y_TH, PlaceOf(sums_.largest_LP, layer, &outputs_L_));
  if (!adds_) return;
  AddRows(stream, y_TH.dim(0), sums_.rows_L.Slice(0, layer, layer + 1));
  AddSquares(stream, y_TH.View({y_TH.numel()}), sums_.squares_L2.Select(0, layer));
}

void ActivationMeter::AddScores(const Stream& stream, int64_t layer, const Tensor& lse) {
  const int64_t count = lse.numel();
  const Tensor label_1 = statistics_.At(0, DType::kInt32, {1});
  ops::Zero(stream, label_1);
  ops::CrossEntropyStatistics(stream, lse.View({1, count}), label_1, {0, count},
                              PlaceOf(sums_.scores_LP, layer, &scores_L_),
                              statistics_.At(SizeOf(DType::kFloat32), DType::kFloat32, {1}),
                              statistics_.At(2 * SizeOf(DType::kFloat32), DType::kFloat32, {1}));
}

}  // namespace megatron
