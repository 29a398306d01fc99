// The attention kernels: one piece of work on one thread. attention.cc splits the problem into
// pieces.
//
// A *row* is one (query token, head of the group) of a sequence and group: row i is token i / R,
// head i % R. Rows and keys are processed in blocks. All sums of a piece are formed in ascending
// order of blocks, whatever else is in the piece, so the bits of a gradient do not depend on how
// the problem was split.
#ifndef MEGATRON_OPS_CPU_ATTENTION_KERNELS_H_
#define MEGATRON_OPS_CPU_ATTENTION_KERNELS_H_

#include <cstdint>

#include "megatron/tensor/dtype.h"

namespace megatron::ops {

// Number of rows in a row block, and of keys in a key block.
constexpr int64_t kAttentionRows = 128;
constexpr int64_t kAttentionKeys = 64;

// A [token, group, head of the group, D or E] tensor. Strides count elements; the last dim is
// contiguous.
struct AttentionOperand {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t token_stride = 0, group_stride = 0, head_stride = 0;
};

struct AttentionProblem {
  DType dtype = DType::kFloat32;
  int64_t group_heads = 1;  // R
  int64_t head_dim = 1;     // D
  int64_t value_dim = 1;    // E
  float scale = 1;
  float softcap = 0;  // 0: none
  bool causal = true;
  int64_t window_size = 0;           // 0: none
  const int32_t* place_q = nullptr;  // positions of all queries and keys; null: their indices
  const int32_t* place_k = nullptr;
  AttentionOperand q, k, v;  // like dout and (in backward) out, they have `dtype`
  AttentionOperand out;
  AttentionOperand lse;  // fp32
  AttentionOperand dout, dq, dk, dv;
  bool add_to_queries = false, add_to_keys = false;  // outputs that are added to are fp32
  float* largest_scores = nullptr;  // those of the heads of this rank, which threads share; or null

  const float* bias = nullptr;  // [2 reach + 1, heads of this rank]; null: none
  int32_t bias_reach = 0, bias_heads = 0;
  // [row blocks of all pieces, R, 2 reach + 1]: the gradient of the bias as summed by each row
  // block.
  float* bias_sums = nullptr;
  const float* sink = nullptr;  // scores of the sinks of this rank's heads; null: none
  float* sink_sums = nullptr;   // [row blocks of all pieces, R]: their gradient, likewise; or null

  bool dropout = false;
  uint32_t dropout_threshold = 0;          // words below it drop
  float dropout_scale = 1;                 // scale of kept elements
  const uint32_t* dropout_keys = nullptr;  // lo and hi of each head of this rank
  const int64_t* sample = nullptr;
  const int32_t* position = nullptr;
};

// One sequence and group, and those of its blocks that the piece covers. A piece of a forward pass
// may have several groups where TakesFewRows.
struct AttentionPiece {
  int64_t q_begin = 0, q_length = 0, k_begin = 0, k_length = 0;
  int64_t group = 0, end_group = 1;
  int64_t first_row_block = 0, end_row_block = 0;
  int64_t first_key_block = 0, end_key_block = 0;
  int64_t row_blocks_before = 0;           // row blocks of other sequences and groups
  bool wants_dq = true, wants_dkv = true;  // dq needs all key blocks, dk and dv need all row blocks
  const AttentionPiece* next = nullptr;    // the thread's next one in a forward pass, or null
};

// The most rows of a block that has a way of its own through the forward kernel, which lacks what
// generation does not need. A piece of such blocks has kAttentionRows of them at most.
constexpr int64_t kAttentionFewRows = 4;
static inline bool TakesFewRows(const AttentionProblem& problem, int64_t rows) {
  return rows <= kAttentionFewRows && !problem.dropout && problem.bias == nullptr &&
         problem.softcap == 0;
}

// Number of floats of scratch that a piece needs with any instruction set.
static inline int64_t AttentionForwardScratch(const AttentionProblem& problem) {
  const int64_t width = (problem.head_dim + 15) / 16 * 16;
  const int64_t value_width = (problem.value_dim + 15) / 16 * 16;
  return (2 * kAttentionRows + kAttentionKeys) * width +
         (kAttentionRows + kAttentionKeys) * value_width + 2 * kAttentionRows * kAttentionKeys;
}
static inline int64_t AttentionBackwardScratch(const AttentionProblem& problem,
                                               int64_t key_blocks) {
  const int64_t width = (problem.head_dim + 15) / 16 * 16;
  const int64_t value_width = (problem.value_dim + 15) / 16 * 16;
  return (3 * kAttentionRows + (1 + key_blocks) * kAttentionKeys) * (width + value_width) +
         3 * kAttentionRows * kAttentionKeys;
}

// `scratch` is aligned to 64 bytes.
namespace avx2 {
void AttentionForwardPiece(const AttentionProblem& problem, const AttentionPiece& piece,
                           float* scratch);
void AttentionBackwardPiece(const AttentionProblem& problem, const AttentionPiece& piece,
                            float* scratch);
}  // namespace avx2
namespace avx512 {
void AttentionForwardPiece(const AttentionProblem& problem, const AttentionPiece& piece,
                           float* scratch);
void AttentionBackwardPiece(const AttentionProblem& problem, const AttentionPiece& piece,
                            float* scratch);
}  // namespace avx512

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_ATTENTION_KERNELS_H_
