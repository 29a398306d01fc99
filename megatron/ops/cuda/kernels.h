// The ops on CUDA: the functions of ../*.h for tensors of a CUDA device, called by them after they
// have checked their operands. In a build without --config=cuda each ends the program and says so.
//
// All are asynchronous on the stream. Sums have a fixed order: two runs on one kind of device give
// the same bits, and no kernel uses atomics. A failed launch is a CHECK.
#ifndef MEGATRON_OPS_CUDA_KERNELS_H_
#define MEGATRON_OPS_CUDA_KERNELS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "megatron/ops/activation_type.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/float8/float8_tensor.h"
#include "megatron/ops/moe/grouped_linear.h"
#include "megatron/ops/moe/router.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/optimizer.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops::cuda {

void ActivationForward(const Stream& stream, Activation activation, const Tensor& x_TF,
                       const Tensor& y_TF);
void ActivationBackward(const Stream& stream, Activation activation, const Tensor& dy_TF,
                        const Tensor& x_TF, const Tensor& dx_TF);
void GateForward(const Stream& stream, Activation activation, const Tensor& gate_up_T2F,
                 const Tensor& y_TF);
void GateBackward(const Stream& stream, Activation activation, const Tensor& dy_TF,
                  const Tensor& gate_up_T2F, const Tensor& d_gate_up_T2F);

// Whether the current device and this build have what attention's kernels for Hopper need: compute
// capability 9.0 and code for sm_90a.
bool HopperIsThere();
void AttentionForward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                      const Tensor& out_TGRD, const Tensor& lse_TGR);
void AttentionBackward(const Stream& stream, const Attention& attention, const AttentionInputs& in,
                       const Tensor& out_TGRD, const Tensor& lse_TGR, const Tensor& dout_TGRD,
                       const AttentionInputs& gradients);

void CrossEntropyStatistics(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                            const VocabRange& range, const Tensor& max_T, const Tensor& sum_T,
                            const Tensor& target_T);
void RescaleSum(const Stream& stream, const Tensor& old_max_T, const Tensor& new_max_T,
                const Tensor& sum_T);
void CrossEntropyLoss(const Stream& stream, const Tensor& max_T, const Tensor& sum_T,
                      const Tensor& target_T, const Tensor& loss_T);
void CrossEntropyHits(const Stream& stream, const Tensor& max_T, const Tensor& target_T,
                      const Tensor& hit_T);
void CrossEntropyBackward(const Stream& stream, const Tensor& logits_TV, const Tensor& labels_T,
                          const VocabRange& range, const Tensor& max_T, const Tensor& sum_T,
                          const Tensor& weight_T);
void WeightedSum(const Stream& stream, const Tensor& x_T, const Tensor& weight_T,
                 const Tensor& out_2);

void BiasDropoutAdd(const Stream& stream, const Dropout& dropout, const Tensor& x_TH,
                    const Tensor& bias_H, const Tensor& residual_TH, const Tensor& out_TH);
void Jitter(const Stream& stream, float eps, const Dropout& random, const Tensor& x_TH,
            const Tensor& out_TH);
void DropoutBackward(const Stream& stream, const Dropout& dropout, const Tensor& dy_TH,
                     const Tensor& dx_TH, const Tensor& dbias_H);

void Copy(const Stream& stream, const Tensor& in, const Tensor& out);
void Add(const Stream& stream, const Tensor& in, const Tensor& out);
void Scale(const Stream& stream, float factor, const Tensor& out);
void Zero(const Stream& stream, const Tensor& out);

void EmbeddingForward(const Stream& stream, const Tensor& ids_T, const Tensor& table_VH,
                      int64_t first_row, bool accumulate, const Tensor& y_TH);
void EmbeddingBackward(const Stream& stream, const Tensor& ids_T, const Tensor& dy_TH,
                       int64_t first_row, const Tensor& dtable_VH);

void AbsMax(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1);
void Quantize(const Stream& stream, const Tensor& x_RC, const Tensor& amax_1,
              const Float8Tensor& out);
void Float8Product(const Stream& stream, const Float8Matrix& a_MK, const Float8Matrix& b_NK,
                   const Tensor& bias_N, const Tensor& c_MN);
void AddFloat8Product(const Stream& stream, const Float8Matrix& a_MK, const Float8Matrix& b_NK,
                      const Tensor& c_MN);
void BiasBackward(const Stream& stream, const Tensor& dy_TO, const Tensor& dbias_O);

void LinearForward(const Stream& stream, const Tensor& x_TI, const Tensor& w_OI,
                   const Tensor& bias_O, const Tensor& y_TO);
void LinearActivationForward(const Stream& stream, Activation activation, const Tensor& x_TI,
                             const Tensor& w_OI, const Tensor& bias_O, const Tensor& pre_TO,
                             const Tensor& y_TO);
void LinearBackwardInput(const Stream& stream, const Tensor& dy_TO, const Tensor& w_OI,
                         const Tensor& dx_TI);
void LinearActivationBackwardInput(const Stream& stream, Activation activation, const Tensor& dy_TO,
                                   const Tensor& w_OI, const Tensor& pre_TI, const Tensor& dx_TI);
void LinearBackwardWeight(const Stream& stream, const Tensor& dy_TO, const Tensor& x_TI,
                          const Tensor& dw_OI, const Tensor& dbias_O);

void NormForward(const Stream& stream, const Norm& norm, const Tensor& x_TH,
                 const NormTensors& tensors, const Tensor& y_TH);
void ResidualNormForward(const Stream& stream, const Norm& norm, const Dropout& dropout,
                         const Tensor& x_TH, const Tensor& bias_H, const Tensor& residual_TH,
                         const Tensor& sum_TH, const NormTensors& tensors, const Tensor& y_TH);
void NormBackward(const Stream& stream, const Norm& norm, const Tensor& dy_TH, const Tensor& x_TH,
                  const NormTensors& tensors, const Tensor& dresidual_TH, const Tensor& dx_TH,
                  const Tensor& dgamma_H, const Tensor& dbeta_H);

void AdamWUpdate(const Stream& stream, const AdamWOptions& options,
                 absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
                 const Tensor& m_N, const Tensor& v_N, const Tensor& master_N, const Tensor& out_N);
void SgdUpdate(const Stream& stream, const SgdOptions& options,
               absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
               const Tensor& buffer_N, const Tensor& master_N, const Tensor& out_N);
void LionUpdate(const Stream& stream, const LionOptions& options,
                absl::Span<const OptimizerSegment> segments, const Tensor& grad_N,
                const Tensor& m_N, const Tensor& master_N, const Tensor& out_N);
void SumOfSquares(const Stream& stream, float scale, const Tensor& x_N, const Tensor& out_2);
void CountZeros(const Stream& stream, const Tensor& x_N, const Tensor& out_1);

// Rows must be those of the tables; unlike on the CPU nobody looks at the positions here.
void Rope(const Stream& stream, const Tensor& cos_SP, const Tensor& sin_SP,
          const Tensor& position_T, bool interleaved, bool inverse, const Tensor& x);

void RouterForward(const Stream& stream, const Router& router, const Tensor& logits_TE,
                   const Tensor& bias_E, const Tensor& expert_TK, const Tensor& probability_TK);
void CountChoices(const Stream& stream, const Tensor& expert_TK, const RouterUnits& units,
                  const Tensor& counts_UE);
void RouterBackward(const Stream& stream, const Router& router, const Tensor& logits_TE,
                    const Tensor& expert_TK, const Tensor& dprobability_TK,
                    const RouterLosses& losses, const Tensor& dlogits_TE, const Tensor& values_T2);
void AddRouterLosses(const Stream& stream, const Tensor& values_T2, double balance_factor,
                     double z_factor, const Tensor& sums_2);
void DropOverCapacity(const Stream& stream, DropPolicy policy, int64_t capacity,
                      const RouterUnits& units, const Tensor& probability_TK,
                      const Tensor& expert_TK);

void SinkhornBias(const Stream& stream, const Tensor& logits_TE, const Tensor& bias_E);
void PlaceByExpert(const Stream& stream, const Tensor& expert_TK, const Tensor& place_TKC,
                   const Tensor& rows_RCL, int64_t padded);
void Permute(const Stream& stream, const Tensor& x_TH, const Tensor& place_TKC,
             const Tensor& out_RH);
void PermuteBackward(const Stream& stream, const Tensor& dout_RH, const Tensor& place_TKC,
                     const Tensor& dx_TH);
void Unpermute(const Stream& stream, const Tensor& x_RH, const Tensor& place_TKC,
               const Tensor& probability_TK, const Tensor& y_TH);
void UnpermuteBackward(const Stream& stream, const Tensor& dy_TH, const Tensor& x_RH,
                       const Tensor& place_TKC, const Tensor& probability_TK, const Tensor& dx_RH,
                       const Tensor& dprobability_TK);

void GroupedLinearForward(const Stream& stream, absl::Span<const RowGroup> groups,
                          const Tensor& x_RI, const Tensor& w_EOI, const Tensor& y_RO);
void GroupedLinearBackwardInput(const Stream& stream, absl::Span<const RowGroup> groups,
                                const Tensor& dy_RO, const Tensor& w_EOI, const Tensor& dx_RI);
void GroupedLinearBackwardWeight(const Stream& stream, absl::Span<const RowGroup> groups,
                                 const Tensor& dy_RO, const Tensor& x_RI, const Tensor& dw_EOI);

}  // namespace megatron::ops::cuda

#endif  // MEGATRON_OPS_CUDA_KERNELS_H_
