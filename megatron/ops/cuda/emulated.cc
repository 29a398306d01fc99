// The ops of the emulated device (//megatron/tensor:emulated_cuda): those of the CPU, on the memory
// that the host can reach.
#include "megatron/ops/activation.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/cuda/kernels.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
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

Tensor View(const Tensor& tensor) { return EmulatedView(tensor); }

Dropout View(Dropout dropout) {
  dropout.sample_T = View(dropout.sample_T);
  dropout.position_T = View(dropout.position_T);
  return dropout;
}

Attention View(Attention attention) {
  attention.cu_seqlens_q = View(attention.cu_seqlens_q);
  attention.cu_seqlens_k = View(attention.cu_seqlens_k);
  attention.place_q_T = View(attention.place_q_T);
  attention.place_k_U = View(attention.place_k_U);
  attention.dropout = View(attention.dropout);
  return attention;
}

AttentionInputs View(const AttentionInputs& in) {
  return {View(in.q_TGRD), View(in.k_UGD), View(in.v_UGD), View(in.bias_WN)};
}

NormTensors View(const NormTensors& tensors) {
  return {View(tensors.gamma_H), View(tensors.beta_H), View(tensors.mean_T), View(tensors.rstd_T)};
}

RouterUnits View(RouterUnits units) {
  units.number_T = View(units.number_T);
  return units;
}

RouterLosses View(RouterLosses losses) {
  losses.counts_UE = View(losses.counts_UE);
  losses.units = View(losses.units);
  losses.share_U = View(losses.share_U);
  return losses;
}

}  // namespace

void ActivationForward(const Stream& stream, Activation activation, const Tensor& x_TF,
                       const Tensor& y_TF) {
  ops::ActivationForward(EmulatingStream(stream), activation, View(x_TF), View(y_TF));
}

void ActivationBackward(const Stream& stream, Activation activation, const Tensor& dy_TF,
                        const Tensor& x_TF, const Tensor& dx_TF) {
  ops::ActivationBackward(EmulatingStream(stream), activation, View(dy_TF), View(x_TF),
                          View(dx_TF));
}

void GateForward(const Stream& stream, Activation activation, const Tensor& gate_up_T2F,
                 const Tensor& y_TF) {
  ops::GateForward(EmulatingStream(stream), activation, View(gate_up_T2F), View(y_TF));
}

void GateBackward(const Stream& stream, Activation activation, const Tensor& dy_TF,
                  const Tensor& gate_up_T2F, const Tensor& d_gate_up_T2F) {
  ops::GateBackward(EmulatingStream(stream), activation, View(dy_TF), View(gate_up_T2F),
                    View(d_gate_up_T2F));
}

void AttentionForward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                      const Tensor& out_TGRD, const Tensor& lse_TGR) {
  ops::AttentionForward(EmulatingStream(stream), View(attention), View(in), View(out_TGRD),
                        View(lse_TGR));
}

void AttentionBackward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                       const Tensor& out_TGRD, const Tensor& lse_TGR, const Tensor& dout_TGRD,
                       const AttentionInputs& gradients) {
  ops::AttentionBackward(EmulatingStream(stream), View(attention), View(in), View(out_TGRD),
                         View(lse_TGR), View(dout_TGRD), View(gradients));
}

void CrossEntropyStatistics(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                            const VocabRange& range, const Tensor& max_T, const Tensor& sum_T,
                            const Tensor& target_T) {
  ops::CrossEntropyStatistics(EmulatingStream(stream), View(logits_TV), View(labels_T), range,
                              View(max_T), View(sum_T), View(target_T));
}

void CrossEntropyHits(const Stream& stream, const Tensor& max_T, const Tensor& target_T,
                      const Tensor& hit_T) {
  ops::CrossEntropyHits(EmulatingStream(stream), View(max_T), View(target_T), View(hit_T));
}

void RescaleSum(const Stream& stream, const Tensor& old_max_T, const Tensor& new_max_T,
                const Tensor& sum_T) {
  ops::RescaleSum(EmulatingStream(stream), View(old_max_T), View(new_max_T), View(sum_T));
}

void CrossEntropyLoss(const Stream& stream, const Tensor& max_T, const Tensor& sum_T,
                      const Tensor& target_T, const Tensor& loss_T) {
  ops::CrossEntropyLoss(EmulatingStream(stream), View(max_T), View(sum_T), View(target_T),
                        View(loss_T));
}

void CrossEntropyBackward(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                          const VocabRange& range, const Tensor& max_T, const Tensor& sum_T,
                          const Tensor& weight_T) {
  ops::CrossEntropyBackward(EmulatingStream(stream), View(logits_TV), View(labels_T), range,
                            View(max_T), View(sum_T), View(weight_T));
}

void WeightedSum(const Stream& stream, const Tensor& x_T, const Tensor& weight_T,
                 const Tensor& out_2) {
  ops::WeightedSum(EmulatingStream(stream), View(x_T), View(weight_T), View(out_2));
}

void BiasDropoutAdd(const Stream& stream, const Dropout& dropout, const Tensor& x_TH,
                    const Tensor& bias_H, const Tensor& residual_TH, const Tensor& out_TH) {
  ops::BiasDropoutAdd(EmulatingStream(stream), View(dropout), View(x_TH), View(bias_H),
                      View(residual_TH), View(out_TH));
}

void Jitter(const Stream& stream, float eps, const Dropout& random, const Tensor& x_TH,
            const Tensor& out_TH) {
  ops::Jitter(EmulatingStream(stream), eps, View(random), View(x_TH), View(out_TH));
}

void DropoutBackward(const Stream& stream, const Dropout& dropout, const Tensor& dy_TH,
                     const Tensor& dx_TH, const Tensor& dbias_H) {
  ops::DropoutBackward(EmulatingStream(stream), View(dropout), View(dy_TH), View(dx_TH),
                       View(dbias_H));
}

void Copy(const Stream& stream, const Tensor& in, const Tensor& out) {
  ops::Copy(EmulatingStream(stream), View(in), View(out));
}

void Add(const Stream& stream, const Tensor& in, const Tensor& out) {
  ops::Add(EmulatingStream(stream), View(in), View(out));
}

void Scale(const Stream& stream, float factor, const Tensor& out) {
  ops::Scale(EmulatingStream(stream), factor, View(out));
}

void Zero(const Stream& stream, const Tensor& out) {
  ops::Zero(EmulatingStream(stream), View(out));
}

void EmbeddingForward(const Stream& stream, const Tensor& ids_T, const Tensor& table_VH,
                      int64_t first_row, bool accumulate, const Tensor& y_TH) {
  ops::EmbeddingForward(EmulatingStream(stream), View(ids_T), View(table_VH), first_row, accumulate,
                        View(y_TH));
}

void EmbeddingBackward(const Stream& stream, const Tensor& ids_T, const Tensor& dy_TH,
                       int64_t first_row, const Tensor& dtable_VH) {
  ops::EmbeddingBackward(EmulatingStream(stream), View(ids_T), View(dy_TH), first_row,
                         View(dtable_VH));
}

void NormForward(const Stream& stream, const Norm& norm, const Tensor& x_TH,
                 const NormTensors& tensors, const Tensor& y_TH) {
  ops::NormForward(EmulatingStream(stream), norm, View(x_TH), View(tensors), View(y_TH));
}

void ResidualNormForward(const Stream& stream, const Norm& norm, const Dropout& dropout,
                         const Tensor& x_TH, const Tensor& bias_H, const Tensor& residual_TH,
                         const Tensor& sum_TH, const NormTensors& tensors, const Tensor& y_TH) {
  ops::ResidualNormForward(EmulatingStream(stream), norm, View(dropout), View(x_TH), View(bias_H),
                           View(residual_TH), View(sum_TH), View(tensors), View(y_TH));
}

void NormBackward(const Stream& stream, const Norm& norm, const Tensor& dy_TH, const Tensor& x_TH,
                  const NormTensors& tensors, const Tensor& dresidual_TH, const Tensor& dx_TH,
                  const Tensor& dgamma_H, const Tensor& dbeta_H) {
  ops::NormBackward(EmulatingStream(stream), norm, View(dy_TH), View(x_TH), View(tensors),
                    View(dresidual_TH), View(dx_TH), View(dgamma_H), View(dbeta_H));
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

void SumOfSquares(const Stream& stream, float scale, const Tensor& x_N, const Tensor& out_2) {
  ops::SumOfSquares(EmulatingStream(stream), scale, View(x_N), View(out_2));
}

void CountZeros(const Stream& stream, const Tensor& x_N, const Tensor& out_1) {
  ops::CountZeros(EmulatingStream(stream), View(x_N), View(out_1));
}

void Rope(const Stream& stream, const Tensor& cos_SP, const Tensor& sin_SP,
          const Tensor& position_T, bool interleaved, bool inverse, const Tensor& x) {
  ops::Rope(EmulatingStream(stream), View(cos_SP), View(sin_SP), View(position_T), interleaved,
            inverse, View(x));
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
