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
    &MicroBatch::tokens_T,          &MicroBatch::labels_T,    &MicroBatch::loss_weight_T,
    &MicroBatch::gradient_weight_T, &MicroBatch::position_T,  &MicroBatch::sample_T,
    &MicroBatch::sample_position_T, &MicroBatch::token_type_T};
// One weight for each sequence.
constexpr Tensor MicroBatch::*kSequenceWeights[] = {&MicroBatch::sequence_weight_S,
                                                    &MicroBatch::sequence_gradient_weight_S};

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

// Which sequences begin here, and what counts of them.
void TakeSequences(const MicroBatch& whole, int rank, const MicroBatch& slice) {
  if (!slice.context.first_token_S) return;
  const int32_t* const begin = slice.context.cu_seqlens.Select(0, rank).data<int32_t>();
  const int32_t* const place = slice.context.place_CT.Select(0, rank).data<int32_t>();
  int32_t* const first = slice.context.first_token_S.data<int32_t>();
  for (int64_t s = 0; s < whole.num_sequences(); ++s) {
    const bool here = begin[s] < begin[s + 1] && place[begin[s]] == 0;
    first[s] = here ? begin[s] : -1;
    for (Tensor MicroBatch::*weight : kSequenceWeights) {
      (slice.*weight).data<float>()[s] = here ? (whole.*weight).data<float>()[s] : 0;
    }
  }
}

void ForEachStripe(int size, int rank, int64_t tokens,
                   absl::FunctionRef<void(const ContextChunk&)> fn) {
  const int64_t round = size * kContextStripe;
  CHECK_EQ(tokens % round, 0) << tokens << " tokens in stripes for " << size << " ranks";
  for (int64_t i = 0; i < tokens / round; ++i)
    fn({i * round + rank * kContextStripe, i * kContextStripe, kContextStripe});
}

}  // namespace

void ForEachContextChunk(int size, int rank, int64_t tokens, int64_t sample_length,
                         absl::FunctionRef<void(const ContextChunk&)> fn) {
  if (sample_length == 0) return ForEachStripe(size, rank, tokens, fn);
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
  if (!whole.sequence_label_S) return batch;
  const Shape sequences{whole.num_sequences()};
  batch.context.first_token_S = next(DType::kInt32, sequences);
  for (Tensor MicroBatch::*weight : kSequenceWeights)
    batch.*weight = next(DType::kFloat32, sequences);
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
  TakeSequences(whole, shard.rank, slice);
}

int64_t ContextSliceBytes(int64_t tokens, int size, int64_t labelled) {
  const int64_t mine = tokens / size;
  const int64_t bytes = 6 * RoundUp(4 * mine) + RoundUp(8 * mine) +
                        RoundUp(4 * size * (tokens + 1)) + RoundUp(4 * tokens);
  return labelled == 0 ? bytes : bytes + RoundUp(4 * mine) + 3 * RoundUp(4 * labelled);
}

}  // namespace megatron
