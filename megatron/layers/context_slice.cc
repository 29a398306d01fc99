#include "megatron/layers/context_slice.h"

#include <algorithm>
#include <cstring>

#include "glog/logging.h"
#include "megatron/base/round_up.h"

namespace megatron {
namespace {

int64_t Aligned(int64_t bytes) { return RoundUp(bytes, Buffer::kAlignment); }

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

void ForEachStripe(int size, int rank, int64_t stripe, int64_t tokens,
                   absl::FunctionRef<void(const ContextChunk&)> fn) {
  const int64_t round = size * stripe;
  CHECK_EQ(tokens % round, 0) << tokens << " tokens in stripes for " << size << " ranks";
  for (int64_t i = 0; i < tokens / round; ++i) fn({i * round + rank * stripe, i * stripe, stripe});
}

void ForEachTeamChunk(const ContextShard& shard, int team, int64_t tokens,
                      absl::FunctionRef<void(const ContextChunk&)> fn) {
  if (shard.sample_length == 0)
    return ForEachStripe(shard.teams(), team, shard.team_size * kContextStripe, tokens, fn);
  ForEachContextChunk(shard.teams(), team, tokens, shard.sample_length, fn);
}

// Finds where the sequences begin among one team's tokens, and each token's place in its sequence.
void PlaceTokens(const Tensor& cu_seqlens, const ContextShard& shard, int team,
                 const ContextBatch& context) {
  const int32_t* const begin = cu_seqlens.data<int32_t>();
  const int64_t sequences = cu_seqlens.dim(0) - 1, tokens = begin[sequences];
  int32_t* const local_begin = context.cu_seqlens.Select(0, team).data<int32_t>();
  int32_t* const place = context.place_CT.Select(0, team).data<int32_t>();
  int64_t sequence = 0;
  local_begin[0] = 0;
  auto finish = [&](int64_t token, int64_t local) {  // the sequences that end at or before a token
    while (sequence < sequences && begin[sequence + 1] <= token)
      local_begin[++sequence] = static_cast<int32_t>(local);
  };
  int64_t local = 0;
  ForEachTeamChunk(shard, team, tokens, [&](const ContextChunk& chunk) {
    for (int64_t i = 0; i < chunk.length; ++i, ++local) {
      const int64_t token = chunk.whole_begin + i;
      finish(token, local);
      place[local] = static_cast<int32_t>(token - begin[sequence]);
    }
  });
  finish(tokens, local);
}

// Finds which sequences begin here, and which of their weights count here.
void TakeSequences(const MicroBatch& whole, const ContextShard& shard, const MicroBatch& slice) {
  if (!slice.context.first_token_S) return;
  const int32_t* const begin = whole.cu_seqlens.data<int32_t>();
  const int64_t sequences = whole.num_sequences();
  int32_t* const first = slice.context.first_token_S.data<int32_t>();
  std::fill_n(first, sequences, -1);
  int64_t s = 0;
  ForEachContextChunk(shard.size, shard.rank, whole.num_tokens(), shard.sample_length,
                      [&](const ContextChunk& chunk) {
                        const int64_t end = chunk.whole_begin + chunk.length;
                        for (; s < sequences && begin[s] < end; ++s) {
                          const int64_t place = begin[s] - chunk.whole_begin;
                          if (place >= 0)
                            first[s] = static_cast<int32_t>(chunk.local_begin + place);
                        }
                      });
  for (Tensor MicroBatch::*weight : kSequenceWeights) {
    for (s = 0; s < sequences; ++s)
      (slice.*weight).data<float>()[s] = first[s] < 0 ? 0 : (whole.*weight).data<float>()[s];
  }
}

// Returns whether a team's samples and places are neither the rank's own nor those of the whole
// batch.
bool HasTeamTokens(const ContextShard& shard) { return shard.team_size > 1 && shard.teams() > 1; }

template <typename Part>
void TakeTeamTokens(const Part& whole, const ContextShard& shard, const ContextBatch& context) {
  if (!HasTeamTokens(shard) || whole.num_tokens() == 0) return;
  ForEachTeamChunk(shard, shard.team(), whole.num_tokens(), [&](const ContextChunk& chunk) {
    TakeRows(whole.sample_T, chunk, context.sample_T);
    TakeRows(whole.sample_position_T, chunk, context.sample_position_T);
  });
}

}  // namespace

void ForEachContextChunk(int size, int rank, int64_t tokens, int64_t sample_length,
                         absl::FunctionRef<void(const ContextChunk&)> fn) {
  if (sample_length == 0) return ForEachStripe(size, rank, kContextStripe, tokens, fn);
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
    offset += Aligned(tensor.bytes());
    return tensor;
  };
  // One value for each of this rank's tokens.
  auto shorten = [&](Tensor* x_T) {
    if (*x_T) *x_T = next(x_T->dtype(), {x_T->numel() / shard.size});
  };
  // `part` and what this rank has of it.
  auto place = [&](const auto& part, const auto& mine, ContextBatch* context) {
    const int64_t of_team = part.num_tokens() / shard.teams();
    context->sample_length = shard.sample_length;
    context->team_size = shard.team_size;
    context->cu_seqlens = next(DType::kInt32, {shard.teams(), part.cu_seqlens.dim(0)});
    context->place_CT = next(DType::kInt32, {shard.teams(), of_team});
    const auto& team = shard.teams() == 1 ? part : mine;
    context->sample_T = team.sample_T;
    context->sample_position_T = team.sample_position_T;
    if (!HasTeamTokens(shard)) return;
    context->sample_T = next(DType::kInt64, {of_team});
    context->sample_position_T = next(DType::kInt32, {of_team});
  };
  MicroBatch batch = whole;
  for (Tensor MicroBatch::*field : kTokenFields) shorten(&(batch.*field));
  shorten(&batch.spans.span_T);
  for (Tensor MtpBatch::*field : kMtpFields) {
    Tensor* const x_DT = &(batch.mtp.*field);
    if (*x_DT) *x_DT = next(x_DT->dtype(), {x_DT->dim(0), x_DT->dim(1) / shard.size});
  }
  place(whole, batch, &batch.context);
  if (whole.encoder.num_tokens() > 0) {
    for (Tensor EncoderBatch::*field : kEncoderTokenFields) shorten(&(batch.encoder.*field));
    place(whole.encoder, batch.encoder, &batch.encoder.context);
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
    for (int64_t depth = 0; depth < whole.mtp.depths(); ++depth) {
      for (Tensor MtpBatch::*field : kMtpFields)
        TakeRows((whole.mtp.*field).Select(0, depth), chunk, (slice.mtp.*field).Select(0, depth));
    }
  });
  fill(whole.encoder.num_tokens(), [&](const ContextChunk& chunk) {
    for (Tensor EncoderBatch::*field : kEncoderTokenFields)
      take(whole.encoder.*field, chunk, slice.encoder.*field);
  });
  TakeTeamTokens(whole, shard, slice.context);
  TakeTeamTokens(whole.encoder, shard, slice.encoder.context);
  for (int team = 0; team < shard.teams(); ++team) {
    PlaceTokens(whole.cu_seqlens, shard, team, slice.context);
    if (whole.encoder.num_tokens() > 0)
      PlaceTokens(whole.encoder.cu_seqlens, shard, team, slice.encoder.context);
  }
  TakeSequences(whole, shard, slice);
}

int64_t ContextSliceBytes(const ContextSliceSize& whole, const ContextShard& shard) {
  // Bytes for the sequences among `tokens` tokens, for the tokens' places, and for a team's tokens.
  const auto places = [&](int64_t tokens) {
    const int64_t team = HasTeamTokens(shard) ? tokens / shard.teams() : 0;
    return Aligned(4 * shard.teams() * (tokens + 1)) + Aligned(4 * tokens) + Aligned(8 * team) +
           Aligned(4 * team);
  };
  const int64_t mine = whole.tokens / shard.size, encoder_mine = whole.encoder_tokens / shard.size;
  int64_t bytes = 6 * Aligned(4 * mine) + Aligned(8 * mine) + places(whole.tokens);
  bytes += 4 * Aligned(4 * whole.mtp_depths * mine);
  if (whole.labelled > 0) bytes += 2 * Aligned(4 * mine) + 3 * Aligned(4 * whole.labelled);
  if (whole.encoder_tokens > 0) {
    bytes += Aligned(4 * mine) + 3 * Aligned(4 * encoder_mine) + Aligned(8 * encoder_mine) +
             places(whole.encoder_tokens);
  }
  return bytes;
}

}  // namespace megatron
