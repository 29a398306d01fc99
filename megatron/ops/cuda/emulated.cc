// The ops of the emulated device (//megatron/tensor:emulated_cuda): those of the CPU, on the memory
// that the host can reach. Those that no graph holds carry out what they are given at once.
#include "glog/logging.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/cuda/emulated_call.h"
#include "megatron/ops/cuda/kernels.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/float8/quantize.h"
#include "megatron/ops/moe/grouped_linear.h"
#include "megatron/ops/moe/permute.h"
#include "megatron/ops/moe/router.h"
#include "megatron/ops/moe/sinkhorn.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/optimizer.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/weighted_sum.h"
#include "megatron/tensor/emulated_cuda.h"

namespace megatron::ops::cuda {
namespace {

RouterUnits View(RouterUnits units) {
  units.number_T = EmulatedView(units.number_T);
  return units;
}

RouterLosses View(RouterLosses losses) {
  losses.counts_UE = EmulatedView(losses.counts_UE);
  losses.units = View(losses.units);
  losses.share_U = EmulatedView(losses.share_U);
  return losses;
}

void RefuseCudnn(const Attention& attention) {
  CHECK(attention.kernel != AttentionKernel::kCudnn &&
        attention.kernel != AttentionKernel::kCudnnDeterministic)
      << "cuDNN is not emulated";
}

}  // namespace

void ActivationForward(const Stream& stream, Activation activation, const Tensor& x_TF,
                       const Tensor& y_TF) {
  MEGATRON_EMULATED_CALL(ActivationForward, stream, activation, x_TF, y_TF);
}

void ActivationBackward(const Stream& stream, Activation activation, const Tensor& dy_TF,
                        const Tensor& x_TF, const Tensor& dx_TF) {
  MEGATRON_EMULATED_CALL(ActivationBackward, stream, activation, dy_TF, x_TF, dx_TF);
}

void GateForward(const Stream& stream, Activation activation, const Tensor& gate_up_T2F,
                 const Tensor& y_TF) {
  MEGATRON_EMULATED_CALL(GateForward, stream, activation, gate_up_T2F, y_TF);
}

void GateBackward(const Stream& stream, Activation activation, const Tensor& dy_TF,
                  const Tensor& gate_up_T2F, const Tensor& d_gate_up_T2F) {
  MEGATRON_EMULATED_CALL(GateBackward, stream, activation, dy_TF, gate_up_T2F, d_gate_up_T2F);
}

void AttentionForward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                      const Tensor& out_TGRD, const Tensor& lse_TGR) {
  RefuseCudnn(attention);
  MEGATRON_EMULATED_CALL(AttentionForward, stream, attention, in, out_TGRD, lse_TGR);
}

void AttentionBackward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                       const Tensor& out_TGRD, const Tensor& lse_TGR, const Tensor& dout_TGRD,
                       const AttentionInputs& gradients) {
  RefuseCudnn(attention);
  MEGATRON_EMULATED_CALL(AttentionBackward, stream, attention, in, out_TGRD, lse_TGR, dout_TGRD,
                         gradients);
}

void CrossEntropyStatistics(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                            const VocabRange& range, const Tensor& max_T, const Tensor& sum_T,
                            const Tensor& target_T) {
  MEGATRON_EMULATED_CALL(CrossEntropyStatistics, stream, logits_TV, labels_T, range, max_T, sum_T,
                         target_T);
}

void CrossEntropyHits(const Stream& stream, const Tensor& max_T, const Tensor& target_T,
                      const Tensor& hit_T) {
  MEGATRON_EMULATED_CALL(CrossEntropyHits, stream, max_T, target_T, hit_T);
}

void RescaleSum(const Stream& stream, const Tensor& old_max_T, const Tensor& new_max_T,
                const Tensor& sum_T) {
  MEGATRON_EMULATED_CALL(RescaleSum, stream, old_max_T, new_max_T, sum_T);
}

void CrossEntropyLoss(const Stream& stream, const Tensor& max_T, const Tensor& sum_T,
                      const Tensor& target_T, const Tensor& loss_T) {
  MEGATRON_EMULATED_CALL(CrossEntropyLoss, stream, max_T, sum_T, target_T, loss_T);
}

void CrossEntropyBackward(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                          const VocabRange& range, const Tensor& max_T, const Tensor& sum_T,
                          const Tensor& weight_T) {
  MEGATRON_EMULATED_CALL(CrossEntropyBackward, stream, logits_TV, labels_T, range, max_T, sum_T,
                         weight_T);
}

void WeightedSum(const Stream& stream, const Tensor& x_T, const Tensor& weight_T,
                 const Tensor& out_2) {
  MEGATRON_EMULATED_CALL(WeightedSum, stream, x_T, weight_T, out_2);
}

void BiasDropoutAdd(const Stream& stream, const Dropout& dropout, const Tensor& x_TH,
                    const Tensor& bias_H, const Tensor& residual_TH, const Tensor& out_TH) {
  MEGATRON_EMULATED_CALL(BiasDropoutAdd, stream, dropout, x_TH, bias_H, residual_TH, out_TH);
}

void Jitter(const Stream& stream, float eps, const Dropout& random, const Tensor& x_TH,
            const Tensor& out_TH) {
  ops::Jitter(EmulatingStream(stream), eps, View(random), View(x_TH), View(out_TH));
}

void DropoutBackward(const Stream& stream, const Dropout& dropout, const Tensor& dy_TH,
                     const Tensor& dx_TH, const Tensor& dbias_H) {
  MEGATRON_EMULATED_CALL(DropoutBackward, stream, dropout, dy_TH, dx_TH, dbias_H);
}

void Copy(const Stream& stream, const Tensor& in, const Tensor& out) {
  MEGATRON_EMULATED_CALL(Copy, stream, in, out);
}

void Add(const Stream& stream, const Tensor& in, const Tensor& out) {
  MEGATRON_EMULATED_CALL(Add, stream, in, out);
}

void Scale(const Stream& stream, float factor, const Tensor& out) {
  MEGATRON_EMULATED_CALL(Scale, stream, factor, out);
}

void Zero(const Stream& stream, const Tensor& out) { MEGATRON_EMULATED_CALL(Zero, stream, out); }

void EmbeddingForward(const Stream& stream, const Tensor& ids_T, const Tensor& table_VH,
                      int64_t first_row, bool accumulate, const Tensor& y_TH) {
  MEGATRON_EMULATED_CALL(EmbeddingForward, stream, ids_T, table_VH, first_row, accumulate, y_TH);
}

void EmbeddingBackward(const Stream& stream, const Tensor& ids_T, const Tensor& dy_TH,
                       int64_t first_row, const Tensor& dtable_VH) {
  MEGATRON_EMULATED_CALL(EmbeddingBackward, stream, ids_T, dy_TH, first_row, dtable_VH);
}

void NormForward(const Stream& stream, const Norm& norm, const Tensor& x_TH,
                 const NormTensors& tensors, const Tensor& y_TH) {
  MEGATRON_EMULATED_CALL(NormForward, stream, norm, x_TH, tensors, y_TH);
}

void ResidualNormForward(const Stream& stream, const Norm& norm, const Dropout& dropout,
                         const Tensor& x_TH, const Tensor& bias_H, const Tensor& residual_TH,
                         const Tensor& sum_TH, const NormTensors& tensors, const Tensor& y_TH) {
  MEGATRON_EMULATED_CALL(ResidualNormForward, stream, norm, dropout, x_TH, bias_H, residual_TH,
                         sum_TH, tensors, y_TH);
}

void NormBackward(const Stream& stream, const Norm& norm, const Tensor& dy_TH, const Tensor& x_TH,
                  const NormTensors& tensors, const Tensor& dresidual_TH, const Tensor& dx_TH,
                  const Tensor& dgamma_H, const Tensor& dbeta_H) {
  MEGATRON_EMULATED_CALL(NormBackward, stream, norm, dy_TH, x_TH, tensors, dresidual_TH, dx_TH,
                         dgamma_H, dbeta_H);
}

void AdamWUpdate(const Stream& stream, const AdamWOptions& options,
                 absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
                 const Tensor& m_N, const Tensor& v_N, const Tensor& master_N,
                 const Tensor& out_N) {
  ops::AdamWUpdate(EmulatingStream(stream), options, segments, View(grad_N), View(m_N), View(v_N),
                   View(master_N), View(out_N));
}

void SgdUpdate(const Stream& stream, const SgdOptions& options,
               absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
               const Tensor& buffer_N, const Tensor& master_N, const Tensor& out_N) {
  ops::SgdUpdate(EmulatingStream(stream), options, segments, View(grad_N), View(buffer_N),
                 View(master_N), View(out_N));
}

void LionUpdate(const Stream& stream, const LionOptions& options,
                absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
                const Tensor& m_N, const Tensor& master_N, const Tensor& out_N) {
  ops::LionUpdate(EmulatingStream(stream), options, segments, View(grad_N), View(m_N),
                  View(master_N), View(out_N));
}

void SumOfSquares(const Stream& stream, float scale, const Tensor& x_N, const Tensor& out_2) {
  ops::SumOfSquares(EmulatingStream(stream), scale, View(x_N), View(out_2));
}

void CountZeros(const Stream& stream, const Tensor& x_N, const Tensor& out_1) {
  ops::CountZeros(EmulatingStream(stream), View(x_N), View(out_1));
}

void Rope(const Stream& stream, const Tensor& cos_SP, const Tensor& sin_SP,
          const Tensor& position_T, bool interleaved, bool inverse, const Tensor& x) {
  MEGATRON_EMULATED_CALL(Rope, stream, cos_SP, sin_SP, position_T, interleaved, inverse, x);
}

void RouterForward(const Stream& stream, const Router& router, const Tensor& logits_TE,
                   const Tensor& bias_E, const Tensor& expert_TK, const Tensor& probability_TK) {
  ops::RouterForward(EmulatingStream(stream), router, View(logits_TE), View(bias_E),
                     View(expert_TK), View(probability_TK));
}

void CountChoices(const Stream& stream, const Tensor& expert_TK, const RouterUnits& units,
                  const Tensor& counts_UE) {
  ops::CountChoices(EmulatingStream(stream), View(expert_TK), View(units), View(counts_UE));
}

void RouterBackward(const Stream& stream, const Router& router, const Tensor& logits_TE,
                    const Tensor& expert_TK, const Tensor& dprobability_TK,
                    const RouterLosses& losses, const Tensor& dlogits_TE, const Tensor& values_T2) {
  ops::RouterBackward(EmulatingStream(stream), router, View(logits_TE), View(expert_TK),
                      View(dprobability_TK), View(losses), View(dlogits_TE), View(values_T2));
}

void AddRouterLosses(const Stream& stream, const Tensor& values_T2, double balance_factor,
                     double z_factor, const Tensor& sums_2) {
  ops::AddRouterLosses(EmulatingStream(stream), View(values_T2), balance_factor, z_factor,
                       View(sums_2));
}

void DropOverCapacity(const Stream& stream, DropPolicy policy, int64_t capacity,
                      const RouterUnits& units, const Tensor& probability_TK,
                      const Tensor& expert_TK) {
  ops::DropOverCapacity(EmulatingStream(stream), policy, capacity, units, View(probability_TK),
                        View(expert_TK));
}

void SinkhornBias(const Stream& stream, const Tensor& logits_TE, const Tensor& bias_E) {
  ops::SinkhornBias(EmulatingStream(stream), View(logits_TE), View(bias_E));
}

void PlaceByExpert(const Stream& stream, const Tensor& expert_TK, const Tensor& place_TKC,
                   const Tensor& rows_RCL, int64_t padded) {
  ops::PlaceByExpert(EmulatingStream(stream), View(expert_TK), View(place_TKC), View(rows_RCL),
                     padded);
}

void Permute(const Stream& stream, const Tensor& x_TH, const Tensor& place_TKC,
             const Tensor& out_RH) {
  ops::Permute(EmulatingStream(stream), View(x_TH), View(place_TKC), View(out_RH));
}

void PermuteBackward(const Stream& stream, const Tensor& dout_RH, const Tensor& place_TKC,
                     const Tensor& dx_TH) {
  ops::PermuteBackward(EmulatingStream(stream), View(dout_RH), View(place_TKC), View(dx_TH));
}

void Unpermute(const Stream& stream, const Tensor& x_RH, const Tensor& place_TKC,
               const Tensor& probability_TK, const Tensor& y_TH) {
  ops::Unpermute(EmulatingStream(stream), View(x_RH), View(place_TKC), View(probability_TK),
                 View(y_TH));
}

void UnpermuteBackward(const Stream& stream, const Tensor& dy_TH, const Tensor& x_RH,
                       const Tensor& place_TKC, const Tensor& probability_TK, const Tensor& dx_RH,
                       const Tensor& dprobability_TK) {
  ops::UnpermuteBackward(EmulatingStream(stream), View(dy_TH), View(x_RH), View(place_TKC),
                         View(probability_TK), View(dx_RH), View(dprobability_TK));
}

void AbsMax(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1) {
  MEGATRON_EMULATED_CALL(AbsMax, stream, x_RC, amax_1);
}

void Quantize(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1,
              const Float8Tensor& out) {
  MEGATRON_EMULATED_CALL(Quantize, stream, x_RC, amax_1, out);
}

void BiasBackward(const Stream& stream, const Tensor& dy_TO, const Tensor& dbias_O) {
  MEGATRON_EMULATED_CALL(BiasBackward, stream, dy_TO, dbias_O);
}

void GroupedLinearForward(const Stream& stream, absl::Span<const RowGroup> groups,
                          const Tensor& x_RI, const Tensor& w_EOI, const Tensor& y_RO) {
  ops::GroupedLinearForward(EmulatingStream(stream), groups, View(x_RI), View(w_EOI), View(y_RO));
}

void GroupedLinearBackwardInput(const Stream& stream, absl::Span<const RowGroup> groups,
                                const Tensor& dy_RO, const Tensor& w_EOI, const Tensor& dx_RI) {
  ops::GroupedLinearBackwardInput(EmulatingStream(stream), groups, View(dy_RO), View(w_EOI),
                                  View(dx_RI));
}

void GroupedLinearBackwardWeight(const Stream& stream, absl::Span<const RowGroup> groups,
                                 const Tensor& dy_RO, const Tensor& x_RI, const Tensor& dw_EOI) {
  ops::GroupedLinearBackwardWeight(EmulatingStream(stream), groups, View(dy_RO), View(x_RI),
                                   View(dw_EOI));
}

}  // namespace megatron::ops::cuda
