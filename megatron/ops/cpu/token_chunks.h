// Chunks of the tokens of packed sequences, for kernels that carry a state from chunk to chunk.
#ifndef MEGATRON_OPS_CPU_TOKEN_CHUNKS_H_
#define MEGATRON_OPS_CPU_TOKEN_CHUNKS_H_

#include <cstdint>

namespace megatron::ops {

// The number of tokens of a chunk. Chunks are counted from the beginning of each sequence, and the
// last may be smaller.
constexpr int64_t kChunkTokens = 64;

struct TokenChunk {
  int64_t begin = 0, count = 0;  // rows of the batch
  bool first = true, last = true;
};

// A [token, group, head of the group, width] tensor. Strides count elements; the last dim is
// contiguous. Tensors without a dim have stride 0 there.
struct ChunkOperand {
  void* data = nullptr;
  int64_t token_stride = 0, group_stride = 0, head_stride = 0;
};

// What the decay of each head's state is made of: exp(-softplus(raw + bias) exp(a_log)).
struct DecayOperands {
  ChunkOperand raw;
  const void *bias = nullptr, *a_log = nullptr;  // one entry a head
};

// Heads [first_head, end_head) of one group over a sequence, rows [begin, end) of the batch.
struct HeadsOfSequence {
  int64_t begin = 0, end = 0;
  int64_t first_head = 0, end_head = 0;
};

// The new tokens of a sequence that comes in portions, rows [begin, end) of the batch, and the
// states that it has: [heads, N, P] or [heads, K, E] in fp32, which are replaced. They are not read
// where the sequence begins with these tokens.
struct StatePortion {
  int64_t begin = 0, end = 0;
  bool anew = false;
  float* states = nullptr;
};

// Rows and columns of packed matrices are padded to multiples of this number.
constexpr int64_t kChunkPadding = 16;
static inline int64_t PaddedChunk(int64_t n) {
  return (n + kChunkPadding - 1) / kChunkPadding * kChunkPadding;
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_TOKEN_CHUNKS_H_
