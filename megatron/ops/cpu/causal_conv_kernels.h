// The kernels of causal_conv.h: all tokens of a block of channels on one thread.
#ifndef MEGATRON_OPS_CPU_CAUSAL_CONV_KERNELS_H_
#define MEGATRON_OPS_CPU_CAUSAL_CONV_KERNELS_H_

#include <cstdint>

#include "megatron/tensor/dtype.h"

namespace megatron::ops {

constexpr int64_t kConvChannels = 512;  // the most channels of a block
constexpr int64_t kConvTaps = 16;       // the most taps

struct ConvProblem {
  DType dtype = DType::kFloat32;
  const int32_t* cu_seqlens = nullptr;
  int64_t sequences = 0;
  int64_t channels = 1, taps = 1;  // channels of a group
  const void* x = nullptr;
  int64_t token_stride = 0, group_stride = 0;
  const void *weight = nullptr, *bias = nullptr;  // [groups, channels, taps]; bias may be null
  void* y = nullptr;  // [tokens, groups, channels]; in backward its gradient
  int64_t y_stride = 0;
  void* dx = nullptr;  // with the strides of x
  float *dweight = nullptr, *dbias = nullptr;
};

// The new tokens of a sequence that comes in portions, rows [begin, end) of x and y, and what it
// has of the tokens in front of them: [taps - 1, groups, channels], which is replaced. It is not
// read where the portion is the sequence's first one.
struct ConvPortion {
  int64_t begin = 0, end = 0;
  bool anew = false;
  void* recent = nullptr;
};

// Number of floats of scratch: weights, sums of their gradients, and a token's gradients for each
// tap, of a block.
constexpr int64_t kConvScratch = kConvChannels * (3 * kConvTaps + 2);

namespace avx2 {
void CausalConvForward(const ConvProblem& problem, int64_t group, int64_t first, int64_t count,
                       float* scratch);
void CausalConvBackward(const ConvProblem& problem, int64_t group, int64_t first, int64_t count,
                        float* scratch);
void CausalConvContinue(const ConvProblem& problem, const ConvPortion& portion, int64_t group,
                        int64_t first, int64_t count, float* scratch);
}  // namespace avx2
namespace avx512 {
void CausalConvForward(const ConvProblem& problem, int64_t group, int64_t first, int64_t count,
                       float* scratch);
void CausalConvBackward(const ConvProblem& problem, int64_t group, int64_t first, int64_t count,
                        float* scratch);
void CausalConvContinue(const ConvProblem& problem, const ConvPortion& portion, int64_t group,
                        int64_t first, int64_t count, float* scratch);
}  // namespace avx512

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_CAUSAL_CONV_KERNELS_H_
