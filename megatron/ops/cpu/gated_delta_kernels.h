// The kernels of gated_delta.h: heads of a group over a sequence, on one thread.
#ifndef MEGATRON_OPS_CPU_GATED_DELTA_KERNELS_H_
#define MEGATRON_OPS_CPU_GATED_DELTA_KERNELS_H_

#include <cstdint>

#include "megatron/ops/cpu/token_chunks.h"
#include "megatron/tensor/dtype.h"

namespace megatron::ops {

struct GatedDeltaProblem {
  DType dtype = DType::kFloat32;
  int64_t groups = 1, group_heads = 1;
  int64_t key = 1, value = 1;  // widths of a head
  ChunkOperand q, k, v, beta;
  DecayOperands decay;
  ChunkOperand out;                            // forward
  ChunkOperand dout, dq, dk, dv, dbeta, draw;  // backward; draw is the gradient of decay.raw
  float* states = nullptr;                     // [places, heads, padded key, padded value]
  float* token_sums = nullptr;  // [tokens, heads, 2]: parts of the gradients of bias and a_log
};

// Number of floats of scratch that each function below needs.
static inline int64_t GatedDeltaScratchFloats(const GatedDeltaProblem& problem) {
  const int64_t k = PaddedChunk(problem.key), v = PaddedChunk(problem.value);
  return kChunkTokens * (8 * k + 8 * v + 8 * kChunkTokens) +
         problem.group_heads * k * (v + kChunkPadding) + v * (k + kChunkPadding) + 8 * kChunkTokens;
}

namespace avx2 {
void GatedDeltaForward(const GatedDeltaProblem& problem, const HeadsOfSequence& part,
                       float* scratch);
// Takes all heads of a group. Writes the states, too.
void GatedDeltaBackward(const GatedDeltaProblem& problem, const HeadsOfSequence& part,
                        float* scratch);
// Goes through a portion's tokens with a group's heads, one after the other.
void GatedDeltaContinue(const GatedDeltaProblem& problem, const StatePortion& portion,
                        int64_t group, float* scratch);
}  // namespace avx2
namespace avx512 {
void GatedDeltaForward(const GatedDeltaProblem& problem, const HeadsOfSequence& part,
                       float* scratch);
void GatedDeltaBackward(const GatedDeltaProblem& problem, const HeadsOfSequence& part,
                        float* scratch);
// Goes through a portion's tokens with a group's heads, one after the other.
void GatedDeltaContinue(const GatedDeltaProblem& problem, const StatePortion& portion,
                        int64_t group, float* scratch);
}  // namespace avx512

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_GATED_DELTA_KERNELS_H_
