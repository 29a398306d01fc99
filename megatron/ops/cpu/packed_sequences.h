// Loops over the sequences of a packed batch, on the CPU.
#ifndef MEGATRON_OPS_CPU_PACKED_SEQUENCES_H_
#define MEGATRON_OPS_CPU_PACKED_SEQUENCES_H_

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "glog/logging.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/cpu/token_chunks.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron::ops {

// The sequences that cu_seqlens says.
struct PackedSequences {
  const int32_t* begins = nullptr;
  int64_t count = 0;

  PackedSequences(const Tensor& cu_seqlens, int64_t tokens)
      : begins(cu_seqlens.data<int32_t>()), count(cu_seqlens.numel() - 1) {
    CHECK(begins[0] == 0 && begins[count] == tokens)
        << "sequences of " << begins[count] << " tokens, not of " << tokens;
  }
};

// Returns the operand of kernels that is a tensor [T, G, width] or [T, G, R, width].
inline ChunkOperand OperandOf(const Tensor& x) {
  ChunkOperand operand;
  operand.data = x.raw();
  operand.token_stride = x.stride(0);
  operand.group_stride = x.stride(1);
  if (x.rank() == 4) operand.head_stride = x.stride(2);
  return operand;
}
// The same for one number of each head, [T, G, R].
inline ChunkOperand StepOperandOf(const Tensor& x_TGR) {
  ChunkOperand operand = OperandOf(x_TGR);
  operand.head_stride = 1;
  return operand;
}

// The number of places of the states at the beginnings of chunks.
inline int64_t ChunkPlaces(int64_t tokens) { return (tokens + kChunkTokens - 1) / kChunkTokens; }

// Calls body(part) for the heads of each sequence, in parallel. A part has heads of one group, as
// many as one thread takes of it. Each thread takes about as many heads of each sequence as the
// others, so that sequences of different lengths occupy all of them.
inline void ForEachHeads(const Stream& stream, const PackedSequences& sequences, int64_t groups,
                         int64_t group_heads,
                         absl::FunctionRef<void(const HeadsOfSequence& part)> body) {
  const int64_t count = sequences.count;
  // Number i is of head i / count and sequence i % count.
  stream.pool()->ParallelFor(groups * group_heads * count, [&](int64_t first, int64_t last) {
    for (int64_t s = 0; s < count; ++s) {
      HeadsOfSequence part;
      part.begin = sequences.begins[s];
      part.end = sequences.begins[s + 1];
      // The first head whose number of this sequence is not below `number`.
      const auto head_from = [&](int64_t number) { return (number - s + count - 1) / count; };
      const int64_t end_head = head_from(last);
      for (int64_t head = head_from(first); head < end_head; head = part.end_head) {
        part.first_head = head;
        part.end_head = std::min(end_head, (head / group_heads + 1) * group_heads);
        body(part);
      }
    }
  });
}

// The same with the heads of whole groups.
inline void ForEachGroup(const Stream& stream, const PackedSequences& sequences, int64_t groups,
                         int64_t group_heads,
                         absl::FunctionRef<void(const HeadsOfSequence& part)> body) {
  ForEachHeads(stream, sequences, groups, /*group_heads=*/1, [&](const HeadsOfSequence& group) {
    HeadsOfSequence part = group;
    part.first_head = group.first_head * group_heads;
    part.end_head = group.end_head * group_heads;
    body(part);
  });
}

// The new tokens of a sequence that comes in portions.
struct SequencePortion {
  int64_t slot = 0;            // its number among the sequences
  int64_t begin = 0, end = 0;  // rows of the batch
  bool anew = false;           // the first of them is the sequence's first token
};

// Calls body(portion, part) for each sequence that has tokens and each of `parts` parts of it, in
// parallel.
inline void ForEachPortion(
    const Stream& stream, const PackedSequences& sequences, const Tensor& position_T, int64_t parts,
    absl::FunctionRef<void(const SequencePortion& portion, int64_t part)> body) {
  const int32_t* const position = position_T.data<int32_t>();
  stream.pool()->ParallelFor(sequences.count * parts, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      SequencePortion portion;
      portion.slot = i / parts;
      portion.begin = sequences.begins[portion.slot];
      portion.end = sequences.begins[portion.slot + 1];
      if (portion.begin == portion.end) continue;
      portion.anew = position[portion.begin] == 0;
      body(portion, i % parts);
    }
  });
}

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_PACKED_SEQUENCES_H_
