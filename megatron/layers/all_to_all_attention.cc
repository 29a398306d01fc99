// The form of context_attention.h in which ranks exchange tokens for heads.
#include "megatron/layers/context_attention.h"
#include "megatron/layers/context_slice.h"
#include "megatron/ops/elementwise.h"

namespace megatron {
namespace {

// Rows of all tokens, [CT, g, S, D], as parts [C, T, g, S, D] by the rank that holds the tokens,
// and back. g = G / C groups.
template <typename Move>
void ForEachPart(const LayerContext& ctx, const Tensor& all_TGSD, const Tensor& parts_CTGSD,
                 Move move) {
  const int size = ctx.context_group.size();
  for (int rank = 0; rank < size; ++rank) {
    const Tensor part = parts_CTGSD.Select(0, rank);
    if (ctx.batch->context.sample_length == 0) {  // stripes, at equal distances
      const int64_t stripes = part.dim(0) / kContextStripe, width = part.numel() / stripes;
      move(all_TGSD.View({stripes, size, width}).Select(1, rank), part.View({stripes, width}));
      continue;
    }
    ForEachContextChunk(
        size, rank, all_TGSD.dim(0), ctx.batch->context.sample_length,
        [&](const ContextChunk& chunk) {
          move(all_TGSD.Slice(0, chunk.whole_begin, chunk.whole_begin + chunk.length),
               part.Slice(0, chunk.local_begin, chunk.local_begin + chunk.length));
        });
  }
}

// Shape [C, T, g, columns, D] of what ranks exchange, of an [T, G, R, D] tensor.
Shape PartsShape(const LayerContext& ctx, const Shape& shape, int64_t columns) {
  const int64_t size = ctx.context_group.size();
  CHECK_EQ(shape[1] % size, 0) << "groups, over " << size << " context-parallel ranks";
  return {size, shape[0], shape[1] / size, columns, shape[3]};
}

Shape AllTokens(const Shape& parts) { return {parts[0] * parts[1], parts[2], parts[3], parts[4]}; }

Tensor GroupsOf(const Tensor& x, int64_t rank, int64_t groups) {
  return x.Slice(1, rank * groups, (rank + 1) * groups);
}

// all (=): from every rank its tokens of this rank's groups, where every rank sends by group.
void ToHeads(const LayerContext& ctx, const Tensor& send_CTGSD, const Tensor& all_TGSD) {
  const Tensor received =
      ctx.scratch->Allocate(send_CTGSD.dtype(), send_CTGSD.shape(), "exchanged heads");
  ctx.context_group.AllToAll(send_CTGSD, received, ctx.stream);
  ForEachPart(ctx, all_TGSD, received,
              [&](const Tensor& all, const Tensor& part) { ops::Copy(ctx.stream, part, all); });
}

// The parts, by group, of what every rank computed for this rank's tokens.
Tensor ToTokens(const LayerContext& ctx, const Tensor& all_TGSD, const Shape& parts) {
  const Tensor send = ctx.scratch->Allocate(all_TGSD.dtype(), parts, "exchanged heads");
  const Tensor received = ctx.scratch->Allocate(all_TGSD.dtype(), parts, "exchanged heads");
  ForEachPart(ctx, all_TGSD, send,
              [&](const Tensor& all, const Tensor& part) { ops::Copy(ctx.stream, all, part); });
  ctx.context_group.AllToAll(send, received, ctx.stream);
  return received;
}

ops::AttentionInputs Split(const Tensor& qkv_TGSD) {
  const int64_t heads = qkv_TGSD.dim(2) - 2;
  return {qkv_TGSD.Slice(2, 0, heads), qkv_TGSD.Select(2, heads), qkv_TGSD.Select(2, heads + 1)};
}

// Of this rank's share of the groups, with all tokens.
ops::Attention OfShare(const LayerContext& ctx, const ops::Attention& attention,
                       const Tensor& qkv_TGSD) {
  ops::Attention share = attention;
  share.cu_seqlens_q = share.cu_seqlens_k = ctx.batch->cu_seqlens;
  share.max_seqlen_q = share.max_seqlen_k = ctx.batch->max_seqlen;
  share.dropout.sample_T = ctx.batch->context.sample_T;
  share.dropout.position_T = ctx.batch->context.sample_position_T;
  share.dropout.first_column += ctx.context_group.rank() * qkv_TGSD.dim(1) * (qkv_TGSD.dim(2) - 2);
  return share;
}

}  // namespace

void AllToAllAttentionForward(const LayerContext& ctx, Arena* arena,
                              const ops::Attention& attention, const ops::AttentionInputs& in,
                              const Tensor& out_TGRD, AllToAllSaved* saved) {
  const Shape& shape = in.q_TGRD.shape();
  const DType dtype = in.q_TGRD.dtype();
  const Shape qkv = PartsShape(ctx, shape, shape[2] + 2), out = PartsShape(ctx, shape, shape[2]);
  const int64_t size = qkv[0], tokens = size * shape[0], groups = qkv[2];
  saved->qkv_TGSD = arena->Allocate(dtype, AllTokens(qkv), "exchanged qkv");
  saved->out_TGRD = arena->Allocate(dtype, AllTokens(out), "exchanged attention output");
  saved->lse_TGR =
      arena->Allocate(DType::kFloat32, {tokens, groups, shape[2]}, "attention log-sum-exp");
  Arena::Scope scope(ctx.scratch);
  {
    Arena::Scope exchange(ctx.scratch);
    const Tensor send = ctx.scratch->Allocate(dtype, qkv, "exchanged heads");
    for (int64_t rank = 0; rank < size; ++rank) {
      const ops::AttentionInputs part = Split(send.Select(0, rank));
      ops::Copy(ctx.stream, GroupsOf(in.q_TGRD, rank, groups), part.q_TGRD);
      ops::Copy(ctx.stream, GroupsOf(in.k_UGD, rank, groups), part.k_UGD);
      ops::Copy(ctx.stream, GroupsOf(in.v_UGD, rank, groups), part.v_UGD);
    }
    ToHeads(ctx, send, saved->qkv_TGSD);
  }
  ops::AttentionForward(ctx.stream, OfShare(ctx, attention, saved->qkv_TGSD),
                        Split(saved->qkv_TGSD), saved->out_TGRD, saved->lse_TGR);
  const Tensor received = ToTokens(ctx, saved->out_TGRD, out);
  for (int64_t rank = 0; rank < size; ++rank)
    ops::Copy(ctx.stream, received.Select(0, rank), GroupsOf(out_TGRD, rank, groups));
}

void AllToAllAttentionBackward(const LayerContext& ctx, const ops::Attention& attention,
                               const AllToAllSaved& saved, const Tensor& dout_TGRD,
                               const ops::AttentionInputs& gradients) {
  Arena::Scope scope(ctx.scratch);
  const Shape& shape = dout_TGRD.shape();
  const DType dtype = dout_TGRD.dtype();
  const Shape qkv = PartsShape(ctx, shape, shape[2] + 2), out = PartsShape(ctx, shape, shape[2]);
  const int64_t size = qkv[0], groups = qkv[2];
  const Tensor dqkv_TGSD = ctx.scratch->Allocate(dtype, AllTokens(qkv), "exchanged gradients");
  {
    Arena::Scope exchange(ctx.scratch);
    const Tensor dout_all = ctx.scratch->Allocate(dtype, AllTokens(out), "exchanged gradients");
    const Tensor send = ctx.scratch->Allocate(dtype, out, "exchanged heads");
    for (int64_t rank = 0; rank < size; ++rank)
      ops::Copy(ctx.stream, GroupsOf(dout_TGRD, rank, groups), send.Select(0, rank));
    ToHeads(ctx, send, dout_all);
    ops::AttentionBackward(ctx.stream, OfShare(ctx, attention, saved.qkv_TGSD),
                           Split(saved.qkv_TGSD), saved.out_TGRD, saved.lse_TGR, dout_all,
                           Split(dqkv_TGSD));
  }
  const Tensor received = ToTokens(ctx, dqkv_TGSD, qkv);
  for (int64_t rank = 0; rank < size; ++rank) {
    const ops::AttentionInputs part = Split(received.Select(0, rank));
    ops::Copy(ctx.stream, part.q_TGRD, GroupsOf(gradients.q_TGRD, rank, groups));
    ops::Copy(ctx.stream, part.k_UGD, GroupsOf(gradients.k_UGD, rank, groups));
    ops::Copy(ctx.stream, part.v_UGD, GroupsOf(gradients.v_UGD, rank, groups));
  }
}

}  // namespace megatron
