#include "megatron/layers/context_slice.h"

#include <cstring>

#include "glog/logging.h"

namespace megatron {
namespace {

int64_t RoundUp(int64_t bytes) {
  return (bytes + Buffer::kAlignment - 1) / Buffer::kAlignment * Buffer::kAlignment;
}

// One value for each token.
constexpr Tensor MicroBatch::*kTokenFields[] = {
    &MicroBatch::tokens_T,          &MicroBatch::labels_T,   &MicroBatch::loss_weight_T,
    &MicroBatch::gradient_weight_T, &MicroBatch::position_T, &MicroBatch::sample_T,
    &MicroBatch::sample_position_T};

void TakeRows(const Tensor& whole, const ContextChunk& chunk, const Tensor& mine) {
  const int64_t size = SizeOf(whole.dtype());
  std::memcpy(static_cast<char*>(mine.raw()) + chunk.local_begin * size,
              static_cast<const char*>(whole.raw()) + chunk.whole_begin * size,
              chunk.length * size);
}

// Where the sequences begin among one rank's tokens, and each token's place in its sequence.
void PlaceTokens(const MicroBatch& whole, const ContextShard& shard, int rank,
                 const ContextBatch& context) {
  const int32_t* const begin = whole.cu_seqlens.data<int32_t>();
  const int64_t sequences = whole.cu_seqlens.dim(0) - 1;
  int32_t* const local_begin = context.cu_seqlens.Select(0, rank).data<int32_t>();
  int32_t* const place = context.place_CT.Select(0, rank).data<int32_t>();
  int64_t sequence = 0;
  local_begin[0] = 0;
  auto finish = [&](int64_t token, int64_t local) {  // the sequences that end at or before a token
    while (sequence < sequences && begin[sequence + 1] <= token)
      local_begin[++sequence] = static_cast<int32_t>(local);
  };
  int64_t local = 0;
  ForEachContextChunk(shard.size, rank, whole.num_tokens(), shard.sample_length,
                      [&](const ContextChunk& chunk) {
                        for (int64_t i = 0; i < chunk.length; ++i, ++local) {
                          const int64_t token = chunk.whole_begin + i;
                          finish(token, local);
                          place[local] = static_cast<int32_t>(token - begin[sequence]);
                        }
                      });
  finish(whole.num_tokens(), local);
}

}  // namespace

void ForEachContextChunk(int size, int rank, int64_t tokens, int64_t sample_length,
                         absl::FunctionRef<void(const ContextChunk&)> fn) {
  const int64_t length = sample_length / (2 * size);
  CHECK_EQ(length * 2 * size, sample_length) << "cut for " << size << " ranks";
  CHECK_EQ(tokens % sample_length, 0) << sample_length;
  int64_t local = 0;
  for (int64_t sample = 0; sample < tokens; sample += sample_length) {
    for (int chunk : {rank, 2 * size - 1 - rank}) {
      fn({sample + chunk * length, local, length});
      local += length;
    }
  }
}

MicroBatch PlaceContextSlice(const MicroBatch& whole, const ContextShard& shard,
                             const Buffer& memory, int64_t offset) {
  const int64_t mine = whole.num_tokens() / shard.size;
  auto next = [&](DType dtype, const Shape& shape) {
    const Tensor tensor = memory.At(offset, dtype, shape);
    offset += RoundUp(tensor.bytes());
    return tensor;
  };
  MicroBatch batch = whole;
  for (Tensor MicroBatch::*field : kTokenFields) {
    if (whole.*field) batch.*field = next((whole.*field).dtype(), {mine});
  }
  batch.context.sample_length = shard.sample_length;
  batch.context.cu_seqlens = next(DType::kInt32, {shard.size, whole.cu_seqlens.dim(0)});
  batch.context.place_CT = next(DType::kInt32, {shard.size, mine});
  batch.context.sample_T = whole.sample_T;
  batch.context.sample_position_T = whole.sample_position_T;
  return batch;
}

void FillContextSlice(const MicroBatch& whole, const ContextShard& shard, const MicroBatch& slice) {
  ForEachContextChunk(shard.size, shard.rank, whole.num_tokens(), shard.sample_length,
                      [&](const ContextChunk& chunk) {
                        for (Tensor MicroBatch::*field : kTokenFields) {
                          if (whole.*field) TakeRows(whole.*field, chunk, slice.*field);
                        }
                      });
  for (int rank = 0; rank < shard.size; ++rank) PlaceTokens(whole, shard, rank, slice.context);
}

int64_t ContextSliceBytes(int64_t tokens, int size) {
  const int64_t mine = tokens / size;
  return 6 * RoundUp(4 * mine) + RoundUp(8 * mine) + RoundUp(4 * size * (tokens + 1)) +
         RoundUp(4 * tokens);
}

}  // namespace megatron
