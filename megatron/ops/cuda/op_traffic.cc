#include "megatron/ops/cuda/op_traffic.h"

#include <utility>

#include "megatron/ops/activation.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/causal_conv.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/gated_delta.h"
#include "megatron/ops/gated_norm.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/optimizer.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/state_space.h"
#include "megatron/ops/weighted_sum.h"

namespace megatron::ops::cuda {
namespace {

std::string& RunningOp() {
  static std::string& name = *new std::string("none");
  return name;
}

// Stands in the table in front of the op's kernel.
template <auto* op>
struct Named;

template <typename... Operands, void (*op)(const Stream&, Operands...)>
struct Named<op> {
  static inline decltype(op) kernel = nullptr;

  static void Run(const Stream& stream, Operands... operands) {
    const std::string caller = std::exchange(RunningOp(), CudaOpName<op>());
    kernel(stream, operands...);
    RunningOp() = caller;
  }
  static void Stand() {
    if (cuda_kernel<op> == Run) return;
    kernel = std::exchange(cuda_kernel<op>, Run);
  }
};

template <auto*... ops>
void StandInFrontOf() {
  (Named<ops>::Stand(), ...);
}

}  // namespace

OpTraffic::OpTraffic()
    : counter_([this](const std::map<std::string, emulation::AccessedBytes>& by_memory) {
        Op& op = ops_[RunningOp()];
        ++op.launches;
        for (const auto& [memory, bytes] : by_memory) {
          op.by_memory[memory].read += bytes.read;
          op.by_memory[memory].written += bytes.written;
        }
      }) {
  StandInFrontOf<ActivationForward, ActivationBackward, ActivationBackwardAndBias, GateForward,
                 GateBackward, AttentionForward, AttentionBackward, BiasBackward, CrossEntropy,
                 CrossEntropyStatistics, CrossEntropyLoss, CrossEntropyBackward, BiasDropoutAdd,
                 DropoutBackward, Copy, Add, Scale, EmbeddingForward, EmbeddingBackward,
                 LinearForward, LinearActivationForward, LinearBackwardInput,
                 LinearActivationBackwardInput, LinearBackwardWeight, NormForward,
                 ResidualNormForward, NormBackward, Rope, WeightedSum, AdamWUpdate, SumOfSquares,
                 CausalConvForward, CausalConvBackward, GatedNormSums, GatedNormGradientSums,
                 GatedNormForward, GatedNormBackward, StateSpaceForward, StateSpaceBackward,
                 GatedDeltaForward, GatedDeltaBackward>();
}

}  // namespace megatron::ops::cuda
