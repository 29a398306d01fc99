// The kernels of state_space.h: one piece of work on one thread.
//
// The states at the beginnings of chunks are found first, and the gradients of these states in
// backward; then the chunks are independent of each other.
#ifndef MEGATRON_OPS_CPU_STATE_SPACE_KERNELS_H_
#define MEGATRON_OPS_CPU_STATE_SPACE_KERNELS_H_

#include <cstdint>

#include "megatron/ops/cpu/token_chunks.h"
#include "megatron/tensor/dtype.h"

namespace megatron::ops {

struct StateSpaceProblem {
  DType dtype = DType::kFloat32;
  int64_t groups = 1, group_heads = 1;
  int64_t channels = 1, state = 1;
  ChunkOperand x, b, c;
  DecayOperands decay;                 // the raw steps, too
  const void* skip = nullptr;          // one entry a head
  ChunkOperand y;                      // forward
  ChunkOperand dy, dx, db, dc, dstep;  // backward
  // [places, heads, padded state, padded channels].
  float *states = nullptr, *state_gradients = nullptr;
  float* sums = nullptr;  // [places, heads, 3]: gradients of step bias, a_log and skip
};

// Number of floats of scratch that each function below needs.
static inline int64_t StateSpaceScratchFloats(const StateSpaceProblem& problem) {
  const int64_t p = PaddedChunk(problem.channels), n = PaddedChunk(problem.state);
  return kChunkTokens * (7 * n + 6 * p + 4 * kChunkTokens) + 3 * n * p;
}

namespace avx2 {
// Find the states, or their gradients, at the beginnings of the chunks of a sequence's head.
void StateSpaceCarry(const StateSpaceProblem& problem, int64_t begin, int64_t end, int64_t head,
                     float* scratch);
void StateSpaceCarryBack(const StateSpaceProblem& problem, int64_t begin, int64_t end, int64_t head,
                         float* scratch);
// Write what a chunk has of the outputs, or gradients, of a group's heads. Backward adds to the
// sums of the chunk's rows.
void StateSpaceChunkForward(const StateSpaceProblem& problem, const TokenChunk& chunk,
                            int64_t group, float* scratch);
void StateSpaceChunkBackward(const StateSpaceProblem& problem, const TokenChunk& chunk,
                             int64_t group, float* scratch);
// Goes through a portion's tokens with one head, one after the other.
void StateSpaceContinue(const StateSpaceProblem& problem, const StatePortion& portion, int64_t head,
                        float* scratch);
}  // namespace avx2
namespace avx512 {
void StateSpaceCarry(const StateSpaceProblem& problem, int64_t begin, int64_t end, int64_t head,
                     float* scratch);
void StateSpaceCarryBack(const StateSpaceProblem& problem, int64_t begin, int64_t end, int64_t head,
                         float* scratch);
void StateSpaceChunkForward(const StateSpaceProblem& problem, const TokenChunk& chunk,
                            int64_t group, float* scratch);
void StateSpaceChunkBackward(const StateSpaceProblem& problem, const TokenChunk& chunk,
                             int64_t group, float* scratch);
// Goes through a portion's tokens with one head, one after the other.
void StateSpaceContinue(const StateSpaceProblem& problem, const StatePortion& portion, int64_t head,
                        float* scratch);
}  // namespace avx512

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_STATE_SPACE_KERNELS_H_
