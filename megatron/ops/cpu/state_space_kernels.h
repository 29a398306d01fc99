// The kernels of state_space.h: one piece of work on one thread.
//
// Forward goes through a sequence with its heads. Backward finds the states at the beginnings of
// chunks first, and the gradients of these states; then the chunks are independent of each other.
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
  // Backward: [places, heads, padded channels, padded state].
  float *states = nullptr, *state_gradients = nullptr;
  float* sums = nullptr;  // [places, heads, 3]: gradients of step bias, a_log and skip
};

// The most heads of a group with which a thread goes through a sequence at once. They share the
// products of B and C, and their states stay in the caches next to the thread.
constexpr int64_t kHeadsTogether = 16;

// Number of floats of scratch that each function below needs.
static inline int64_t StateSpaceScratchFloats(const StateSpaceProblem& problem) {
  const int64_t p = PaddedChunk(problem.channels), n = PaddedChunk(problem.state);
  const int64_t states =
      problem.group_heads < kHeadsTogether ? problem.group_heads : kHeadsTogether;
  return kChunkTokens * (6 * n + 5 * p + 4 * kChunkTokens) + states * n * p;
}

namespace avx2 {
// Writes the outputs of some heads of a group over a sequence.
void StateSpaceForward(const StateSpaceProblem& problem, const HeadsOfSequence& part,
                       float* scratch);
// Finds the states at the beginnings of the chunks, and their gradients, of the same.
void StateSpaceCarry(const StateSpaceProblem& problem, const HeadsOfSequence& part, float* scratch);
// Writes what a chunk has of the gradients of a group's heads, and adds to the sums of the chunk's
// rows.
void StateSpaceChunkBackward(const StateSpaceProblem& problem, const TokenChunk& chunk,
                             int64_t group, float* scratch);
// Goes through a portion's tokens with one head, one after the other.
void StateSpaceContinue(const StateSpaceProblem& problem, const StatePortion& portion, int64_t head,
                        float* scratch);
}  // namespace avx2
namespace avx512 {
void StateSpaceForward(const StateSpaceProblem& problem, const HeadsOfSequence& part,
                       float* scratch);
void StateSpaceCarry(const StateSpaceProblem& problem, const HeadsOfSequence& part, float* scratch);
void StateSpaceChunkBackward(const StateSpaceProblem& problem, const TokenChunk& chunk,
                             int64_t group, float* scratch);
void StateSpaceContinue(const StateSpaceProblem& problem, const StatePortion& portion, int64_t head,
                        float* scratch);
}  // namespace avx512

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_STATE_SPACE_KERNELS_H_
