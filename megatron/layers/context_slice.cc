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
    &MicroBatch::tokens_T,          &MicroBatch::labels_T,     &MicroBatch::loss_weight_T,
    &MicroBatch::gradient_weight_T, &MicroBatch::position_T,   &MicroBatch::sample_T,
    &MicroBatch::sample_position_T, &MicroBatch::token_type_T, &MicroBatch::sample_number_T};
constexpr Tensor EncoderBatch::*kEncoderTokenFields[] = {
    &EncoderBatch::tokens_T, &EncoderBatch::position_T, &EncoderBatch::sample_T,
    &EncoderBatch::sample_position_T};
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
void PlaceTokens(const Tensor& cu_seqlens, const ContextShard& shard, int rank,
                 const ContextBatch& context) {
  const int32_t* const begin = cu_seqlens.data<int32_t>();
  const int64_t sequences = cu_seqlens.dim(0) - 1, tokens = begin[sequences];
  int32_t* const local_begin = context.cu_seqlens.Select(0, rank).data<int32_t>();
  int32_t* const place = context.place_CT.Select(0, rank).data<int32_t>();
  int64_t sequence = 0;
  local_begin[0] = 0;
  auto finish = [&](int64_t token, int64_t local) {  // the sequences that end at or before a token
    while (sequence < sequences && begin[sequence + 1] <= token)
      local_begin[++sequence] = static_cast<int32_t>(local);
  };
  int64_t local = 0;
  ForEachContextChunk(shard.size, rank, tokens, shard.sample_length,
                      [&](const ContextChunk& chunk) {
                        for (int64_t i = 0; i < chunk.length; ++i, ++local) {
                          const int64_t token = chunk.whole_begin + i;
                          finish(token, local);
                          place[local] = static_cast<int32_t>(token - begin[sequence]);
                        }
                      });
  finish(tokens, local);
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
  auto next = [&](DType dtype, const Shape& shape) {
    const Tensor tensor = memory.At(offset, dtype, shape);
    offset += RoundUp(tensor.bytes());
    return tensor;
  };
  // One value for each of this rank's tokens.
  auto shorten = [&](Tensor* x_T) {
    if (*x_T) *x_T = next(x_T->dtype(), {x_T->numel() / shard.size});
  };
  // Of whole's own, that of all tokens, which `part` still has.
  auto place = [&](const auto& part, ContextBatch* context) {
    context->sample_length = shard.sample_length;
    context->cu_seqlens = next(DType::kInt32, {shard.size, part.cu_seqlens.dim(0)});
    context->place_CT = next(DType::kInt32, {shard.size, part.num_tokens() / shard.size});
    context->sample_T = part.sample_T;
    context->sample_position_T = part.sample_position_T;
  };
  MicroBatch batch = whole;
  place(whole, &batch.context);
  for (Tensor MicroBatch::*field : kTokenFields) shorten(&(batch.*field));
  shorten(&batch.spans.span_T);
  if (whole.encoder.num_tokens() > 0) {
    place(whole.encoder, &batch.encoder.context);
    for (Tensor EncoderBatch::*field : kEncoderTokenFields) shorten(&(batch.encoder.*field));
  }
  if (!whole.sequence_label_S) return batch;
  const Shape sequences{whole.num_sequences()};
  batch.context.first_token_S = next(DType::kInt32, sequences);
  for (Tensor MicroBatch::*weight : kSequenceWeights)
    batch.*weight = next(DType::kFloat32, sequences);
  return batch;
}

void FillContextSlice(const MicroBatch& whole, const ContextShard& shard, const MicroBatch& slice) {
  const auto fill = [&](int64_t tokens, absl::FunctionRef<void(const ContextChunk&)> fn) {
    ForEachContextChunk(shard.size, shard.rank, tokens, shard.sample_length, fn);
  };
  const auto take = [](const Tensor& from, const ContextChunk& chunk, const Tensor& to) {
    if (from) TakeRows(from, chunk, to);
  };
  fill(whole.num_tokens(), [&](const ContextChunk& chunk) {
    for (Tensor MicroBatch::*field : kTokenFields) take(whole.*field, chunk, slice.*field);
    take(whole.spans.span_T, chunk, slice.spans.span_T);
  });
  fill(whole.encoder.num_tokens(), [&](const ContextChunk& chunk) {
    for (Tensor EncoderBatch::*field : kEncoderTokenFields)
      take(whole.encoder.*field, chunk, slice.encoder.*field);
  });
  for (int rank = 0; rank < shard.size; ++rank) {
    PlaceTokens(whole.cu_seqlens, shard, rank, slice.context);
    if (whole.encoder.num_tokens() > 0)
      PlaceTokens(whole.encoder.cu_seqlens, shard, rank, slice.encoder.context);
  }
  TakeSequences(whole, shard.rank, slice);
}

int64_t ContextSliceBytes(const ContextSliceSize& whole, int size) {
  // Of the sequences among `tokens` tokens, and of the tokens' places.
  const auto places = [&](int64_t tokens) {
    return RoundUp(4 * size * (tokens + 1)) + RoundUp(4 * tokens);
  };
  const int64_t mine = whole.tokens / size, encoder_mine = whole.encoder_tokens / size;
  int64_t bytes = 6 * RoundUp(4 * mine) + RoundUp(8 * mine) + places(whole.tokens);
  if (whole.labelled > 0) bytes += 2 * RoundUp(4 * mine) + 3 * RoundUp(4 * whole.labelled);
  if (whole.encoder_tokens > 0) {
    bytes += RoundUp(4 * mine) + 3 * RoundUp(4 * encoder_mine) + RoundUp(8 * encoder_mine) +
             places(whole.encoder_tokens);
  }
  return bytes;
}

}  // namespace megatron
