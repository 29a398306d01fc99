// What stands for the kernels in a build without CUDA. Weak, so that a test may bring a device of
// its own (emulated.cc).
#include "glog/logging.h"
#include "megatron/ops/cuda/kernels.h"

#define MEGATRON_WEAK __attribute__((weak))

namespace megatron::ops::cuda {
namespace {

void NoCuda() { LOG(FATAL) << "this program was built without CUDA: build it with --config=cuda"; }

}  // namespace

MEGATRON_WEAK void ActivationForward(const Stream&, Activation, const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void ActivationBackward(const Stream&, Activation, const Tensor&, const Tensor&,
                                      const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void GateForward(const Stream&, Activation, const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void GateBackward(const Stream&, Activation, const Tensor&, const Tensor&,
                                const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void AttentionForward(const Stream&, const Attention&, const AttentionInputs&,
                                    const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void AttentionBackward(const Stream&, const Attention&, const AttentionInputs&,
                                     const Tensor&, const Tensor&, const Tensor&,
                                     const AttentionInputs&) {
  NoCuda();
}
MEGATRON_WEAK void CrossEntropyStatistics(const Stream&, const Tensor&, const Tensor&,
                                          const VocabRange&, const Tensor&, const Tensor&,
                                          const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void RescaleSum(const Stream&, const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void CrossEntropyLoss(const Stream&, const Tensor&, const Tensor&, const Tensor&,
                                    const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void CrossEntropyHits(const Stream&, const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void CrossEntropyBackward(const Stream&, const Tensor&, const Tensor&,
                                        const VocabRange&, const Tensor&, const Tensor&,
                                        const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void WeightedSum(const Stream&, const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void BiasDropoutAdd(const Stream&, const Dropout&, const Tensor&, const Tensor&,
                                  const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void Jitter(const Stream&, float, const Dropout&, const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void DropoutBackward(const Stream&, const Dropout&, const Tensor&, const Tensor&,
                                   const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void Copy(const Stream&, const Tensor&, const Tensor&) { NoCuda(); }
MEGATRON_WEAK void Add(const Stream&, const Tensor&, const Tensor&) { NoCuda(); }
MEGATRON_WEAK void Scale(const Stream&, float, const Tensor&) { NoCuda(); }
MEGATRON_WEAK void Zero(const Stream&, const Tensor&) { NoCuda(); }
MEGATRON_WEAK void EmbeddingForward(const Stream&, const Tensor&, const Tensor&, int64_t, bool,
                                    const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void EmbeddingBackward(const Stream&, const Tensor&, const Tensor&, int64_t,
                                     const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void AbsMax(const Stream&, const Tensor&, const Tensor&) { NoCuda(); }
MEGATRON_WEAK void Quantize(const Stream&, const Tensor&, const Tensor&, const Float8Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void Float8Product(const Stream&, const Float8Matrix&, const Float8Matrix&,
                                 const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void AddFloat8Product(const Stream&, const Float8Matrix&, const Float8Matrix&,
                                    const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void BiasBackward(const Stream&, const Tensor&, const Tensor&) { NoCuda(); }
MEGATRON_WEAK void LinearForward(const Stream&, const Tensor&, const Tensor&, const Tensor&,
                                 const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void LinearActivationForward(const Stream&, Activation, const Tensor&, const Tensor&,
                                           const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void LinearBackwardInput(const Stream&, const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void LinearActivationBackwardInput(const Stream&, Activation, const Tensor&,
                                                 const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void LinearBackwardWeight(const Stream&, const Tensor&, const Tensor&, const Tensor&,
                                        const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void NormForward(const Stream&, const Norm&, const Tensor&, const NormTensors&,
                               const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void ResidualNormForward(const Stream&, const Norm&, const Dropout&, const Tensor&,
                                       const Tensor&, const Tensor&, const Tensor&,
                                       const NormTensors&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void NormBackward(const Stream&, const Norm&, const Tensor&, const Tensor&,
                                const NormTensors&, const Tensor&, const Tensor&, const Tensor&,
                                const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void AdamWUpdate(const Stream&, const AdamWOptions&,
                               absl::Span<const OptimizerSegment>, const Tensor&, const Tensor&,
                               const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void SgdUpdate(const Stream&, const SgdOptions&, absl::Span<const OptimizerSegment>,
                             const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void LionUpdate(const Stream&, const LionOptions&, absl::Span<const OptimizerSegment>,
                              const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void SumOfSquares(const Stream&, float, const Tensor&, const Tensor&) { NoCuda(); }
MEGATRON_WEAK void CountZeros(const Stream&, const Tensor&, const Tensor&) { NoCuda(); }
MEGATRON_WEAK void Rope(const Stream&, const Tensor&, const Tensor&, const Tensor&, bool, bool,
                        const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void RouterForward(const Stream&, const Router&, const Tensor&, const Tensor&,
                                 const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void CountChoices(const Stream&, const Tensor&, const RouterUnits&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void RouterBackward(const Stream&, const Router&, const Tensor&, const Tensor&,
                                  const Tensor&, const RouterLosses&, const Tensor&,
                                  const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void AddRouterLosses(const Stream&, const Tensor&, double, double, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void DropOverCapacity(const Stream&, DropPolicy, int64_t, const RouterUnits&,
                                    const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void SinkhornBias(const Stream&, const Tensor&, const Tensor&) { NoCuda(); }
MEGATRON_WEAK void PlaceByExpert(const Stream&, const Tensor&, const Tensor&, const Tensor&,
                                 int64_t) {
  NoCuda();
}
MEGATRON_WEAK void Permute(const Stream&, const Tensor&, const Tensor&, const Tensor&) { NoCuda(); }
MEGATRON_WEAK void PermuteBackward(const Stream&, const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void Unpermute(const Stream&, const Tensor&, const Tensor&, const Tensor&,
                             const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void UnpermuteBackward(const Stream&, const Tensor&, const Tensor&, const Tensor&,
                                     const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void GroupedLinearForward(const Stream&, absl::Span<const RowGroup>, const Tensor&,
                                        const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void GroupedLinearBackwardInput(const Stream&, absl::Span<const RowGroup>,
                                              const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
MEGATRON_WEAK void GroupedLinearBackwardWeight(const Stream&, absl::Span<const RowGroup>,
                                               const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}

}  // namespace megatron::ops::cuda
