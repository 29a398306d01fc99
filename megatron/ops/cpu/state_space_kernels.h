// The kernels of state_space.h: one piece of work on one thread.
//
// A thread goes through a sequence with heads of a group; in backward it finds the states at the
// beginnings of chunks first, and then goes through the chunks from the last one.
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
  // Backward.
  float* states = nullptr;           // [places, heads, padded channels, padded state]
  float* block_gradients = nullptr;  // [tokens, groups, blocks, 2, padded state], of several blocks
  // [tokens, heads, 3]: at a sequence's first token its parts of the gradients of step bias, a_log
  // and skip.
  float* sums = nullptr;
};

// The most heads of a group with which a thread goes through a sequence at once. They share the
// products of B and C, and their states stay in the caches next to the thread.
constexpr int64_t kHeadsTogether = 16;

// The heads of a group in backward, where a thread has those of a block: gradients of B and C are
// sums over a block's heads, and over blocks then. What blocks have of them and the sums fit into
// the memory of the gradients of states, which the kernels don't need.
struct HeadBlocks {
  int64_t count, heads;  // blocks of a group, and heads of each but the last
};
static inline HeadBlocks HeadBlocksOf(const StateSpaceProblem& problem) {
  constexpr int64_t kHeadsOfBlock = 4;
  const int64_t n = PaddedChunk(problem.state), p = PaddedChunk(problem.channels);
  const int64_t wanted = (problem.group_heads + kHeadsOfBlock - 1) / kHeadsOfBlock;
  const int64_t fitting = problem.group_heads * (n * p / kChunkTokens - 3) / (2 * n);
  const int64_t most = fitting < 1 ? 1 : fitting < wanted ? fitting : wanted;
  HeadBlocks blocks;
  blocks.heads = (problem.group_heads + most - 1) / most;
  blocks.count = (problem.group_heads + blocks.heads - 1) / blocks.heads;
  return blocks;
}

// Number of floats of scratch that each function below needs.
static inline int64_t StateSpaceScratchFloats(const StateSpaceProblem& problem) {
  const int64_t p = PaddedChunk(problem.channels), n = PaddedChunk(problem.state);
  const int64_t together =
      problem.group_heads < kHeadsTogether ? problem.group_heads : kHeadsTogether;
  const int64_t of_block = HeadBlocksOf(problem).heads + 1;
  return kChunkTokens * (6 * n + 5 * p + 4 * kChunkTokens) +
         (together > of_block ? together : of_block) * n * p;
}

namespace avx2 {
// Writes the outputs of some heads of a group over a sequence.
void StateSpaceForward(const StateSpaceProblem& problem, const HeadsOfSequence& part,
                       float* scratch);
// Writes the gradients of a block's heads over a sequence, and what the block has of those of B and
// C. Behind it, where there are several blocks, the other one adds these up at a token.
void StateSpaceBackward(const StateSpaceProblem& problem, const HeadsOfSequence& part,
                        float* scratch);
void StateSpaceAddBlocks(const StateSpaceProblem& problem, int64_t token, int64_t group);
// Goes through a portion's tokens with one head, one after the other.
void StateSpaceContinue(const StateSpaceProblem& problem, const StatePortion& portion, int64_t head,
                        float* scratch);
}  // namespace avx2
namespace avx512 {
void StateSpaceForward(const StateSpaceProblem& problem, const HeadsOfSequence& part,
                       float* scratch);
void StateSpaceBackward(const StateSpaceProblem& problem, const HeadsOfSequence& part,
                        float* scratch);
void StateSpaceAddBlocks(const StateSpaceProblem& problem, int64_t token, int64_t group);
void StateSpaceContinue(const StateSpaceProblem& problem, const StatePortion& portion, int64_t head,
                        float* scratch);
}  // namespace avx512

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_STATE_SPACE_KERNELS_H_
