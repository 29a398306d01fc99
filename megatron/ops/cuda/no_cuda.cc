// What stands for the kernels in a build without CUDA.
#include "glog/logging.h"
#include "megatron/ops/cuda/kernels.h"

namespace megatron::ops::cuda {
namespace {

void NoCuda() { LOG(FATAL) << "this program was built without CUDA: build it with --config=cuda"; }

}  // namespace

void ActivationForward(const Stream&, Activation, const Tensor&, const Tensor&) { NoCuda(); }
void ActivationBackward(const Stream&, Activation, const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
void SwiGluForward(const Stream&, const Tensor&, const Tensor&) { NoCuda(); }
void SwiGluBackward(const Stream&, const Tensor&, const Tensor&, const Tensor&) { NoCuda(); }
void AttentionForward(const Stream&, const Attention&, const AttentionInputs&, const Tensor&,
                      const Tensor&) {
  NoCuda();
}
void AttentionBackward(const Stream&, const Attention&, const AttentionInputs&, const Tensor&,
                       const Tensor&, const Tensor&, const AttentionInputs&) {
  NoCuda();
}
void CrossEntropyStatistics(const Stream&, const Tensor&, const Tensor&, const VocabRange&,
                            const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
void RescaleSum(const Stream&, const Tensor&, const Tensor&, const Tensor&) { NoCuda(); }
void CrossEntropyLoss(const Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
void CrossEntropyBackward(const Stream&, const Tensor&, const Tensor&, const VocabRange&,
                          const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
void WeightedSum(const Stream&, const Tensor&, const Tensor&, const Tensor&) { NoCuda(); }
void BiasDropoutAdd(const Stream&, const Dropout&, const Tensor&, const Tensor&, const Tensor&,
                    const Tensor&) {
  NoCuda();
}
void DropoutBackward(const Stream&, const Dropout&, const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
void Copy(const Stream&, const Tensor&, const Tensor&) { NoCuda(); }
void Add(const Stream&, const Tensor&, const Tensor&) { NoCuda(); }
void Scale(const Stream&, float, const Tensor&) { NoCuda(); }
void Zero(const Stream&, const Tensor&) { NoCuda(); }
void EmbeddingForward(const Stream&, const Tensor&, const Tensor&, int64_t, bool, const Tensor&) {
  NoCuda();
}
void EmbeddingBackward(const Stream&, const Tensor&, const Tensor&, int64_t, const Tensor&) {
  NoCuda();
}
void LinearForward(const Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
void LinearActivationForward(const Stream&, Activation, const Tensor&, const Tensor&, const Tensor&,
                             const Tensor&, const Tensor&) {
  NoCuda();
}
void LinearBackwardInput(const Stream&, const Tensor&, const Tensor&, const Tensor&) { NoCuda(); }
void LinearActivationBackwardInput(const Stream&, Activation, const Tensor&, const Tensor&,
                                   const Tensor&, const Tensor&) {
  NoCuda();
}
void LinearBackwardWeight(const Stream&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&) {
  NoCuda();
}
void NormForward(const Stream&, const Norm&, const Tensor&, const NormTensors&, const Tensor&) {
  NoCuda();
}
void ResidualNormForward(const Stream&, const Norm&, const Dropout&, const Tensor&, const Tensor&,
                         const Tensor&, const Tensor&, const NormTensors&, const Tensor&) {
  NoCuda();
}
void NormBackward(const Stream&, const Norm&, const Tensor&, const Tensor&, const NormTensors&,
                  const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
void AdamWUpdate(const Stream&, const AdamWOptions&, absl::Span<const OptimizerSegment>,
                 const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
void SgdUpdate(const Stream&, const SgdOptions&, absl::Span<const OptimizerSegment>, const Tensor&,
               const Tensor&, const Tensor&, const Tensor&) {
  NoCuda();
}
void SumOfSquares(const Stream&, float, const Tensor&, const Tensor&) { NoCuda(); }
void Rope(const Stream&, const Tensor&, const Tensor&, const Tensor&, bool, bool, const Tensor&) {
  NoCuda();
}

}  // namespace megatron::ops::cuda
