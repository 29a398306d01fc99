// The form of context_attention.h in which ranks exchange tokens for heads.
#include <vector>

#include "absl/types/span.h"
#include "megatron/layers/context_attention.h"
#include "megatron/layers/context_slice.h"
#include "megatron/ops/elementwise.h"

namespace megatron {
namespace {

// The ranks that exchange; in what follows they are numbered within their team, M of them.
class Team {
 public:
  explicit Team(const LayerContext& ctx)
      : group_(ctx.context_group), size_(ctx.batch->context.team_size) {}

  int size() const { return size_; }
  int rank() const { return group_.rank() % size_; }
  int teams() const { return group_.size() / size_; }
  // The same contract as ProcessGroup::AllToAll.
  void AllToAll(const Tensor& in, const Tensor& out, const Stream& stream) const {
    if (teams() == 1) {
      group_.AllToAll(in, out, stream);
      return;
    }
    std::vector<Transfer> sends, receives;
    for (int peer = 0; peer < size_; ++peer) {
      const int in_group = group_.rank() - rank() + peer;
      if (peer == rank()) continue;
      sends.push_back({in_group, in.Select(0, peer)});
      receives.push_back({in_group, out.Select(0, peer)});
    }
    group_.Exchange(sends, receives, stream);
    ops::Copy(stream, in.Select(0, rank()), out.Select(0, rank()));
  }

 private:
  const ProcessGroup& group_;
  const int size_;
};

// One of the tensors that travel together: this rank's tokens of all groups, [T, G, ...], and all
// the team's tokens of its share of the groups, [M T, G / M, ...].
struct Traveller {
  const ContextBatch* tokens;
  Tensor mine, all;
};

Shape AllTokensOfShare(const LayerContext& ctx, const Shape& mine) {
  const int64_t size = Team(ctx).size();
  CHECK_EQ(mine[1] % size, 0) << "groups, over " << size << " context-parallel ranks";
  Shape all = mine;
  all[0] *= size;
  all[1] /= size;
  return all;
}

Tensor Groups(const Tensor& x, int64_t rank, int64_t size) {
  const int64_t groups = x.dim(1) / size;
  return x.Slice(1, rank * groups, (rank + 1) * groups);
}

// Calls move(rows of all, rows of part) for the tokens that `rank` holds; together they are `part`.
template <typename Move>
void ForEachRun(const LayerContext& ctx, const Traveller& traveller, int rank, const Tensor& part,
                Move move) {
  const Team team(ctx);
  const int size = team.size();
  const Tensor& all = traveller.all;
  if (traveller.tokens->sample_length == 0) {  // stripes, at equal distances
    const int64_t stripes = part.dim(0) / kContextStripe, width = part.numel() / stripes;
    return move(all.View({stripes, size, width}).Select(1, rank), part.View({stripes, width}));
  }
  ForEachContextChunk(size, rank, all.dim(0), traveller.tokens->sample_length / team.teams(),
                      [&](const ContextChunk& chunk) {
                        const int64_t from = chunk.whole_begin, to = chunk.local_begin;
                        move(all.Slice(0, from, from + chunk.length),
                             part.Slice(0, to, to + chunk.length));
                      });
}

// Allocates, for each rank, one tensor after the other: its tokens of one share of the groups,
// [T, G / M, ...].
Tensor AllocateMessage(const LayerContext& ctx, absl::Span<const Traveller> travellers) {
  int64_t elements = 0;
  for (const Traveller& traveller : travellers) elements += traveller.mine.numel();
  const int64_t size = Team(ctx).size();
  return ctx.scratch->Allocate(travellers[0].mine.dtype(), {size, elements / size},
                               "exchanged heads");
}

// Calls fn(traveller, rank, part) for each part of a message.
template <typename Fn>
void ForEachPart(absl::Span<const Traveller> travellers, const Tensor& message_CE, Fn fn) {
  const int size = static_cast<int>(message_CE.dim(0));
  for (int rank = 0; rank < size; ++rank) {
    int64_t begin = 0;
    for (const Traveller& traveller : travellers) {
      Shape shape = traveller.mine.shape();
      shape[1] /= size;
      const int64_t end = begin + shape.numel();
      fn(traveller, rank, message_CE.Select(0, rank).Slice(0, begin, end).View(shape));
      begin = end;
    }
  }
}

// Writes `all` of each tensor from every rank's own tokens.
void ToHeads(const LayerContext& ctx, absl::Span<const Traveller> travellers) {
  Arena::Scope scope(ctx.scratch);
  const int size = Team(ctx).size();
  const Tensor send = AllocateMessage(ctx, travellers), received = AllocateMessage(ctx, travellers);
  ForEachPart(travellers, send, [&](const Traveller& traveller, int rank, const Tensor& part) {
    ops::Copy(ctx.stream, Groups(traveller.mine, rank, size), part);
  });
  Team(ctx).AllToAll(send, received, ctx.stream);
  ForEachPart(travellers, received, [&](const Traveller& traveller, int rank, const Tensor& part) {
    ForEachRun(ctx, traveller, rank, part, [&](const Tensor& all_rows, const Tensor& part_rows) {
      ops::Copy(ctx.stream, part_rows, all_rows);
    });
  });
}

// Writes `mine` of each tensor from what every rank has of all tokens.
void ToTokens(const LayerContext& ctx, absl::Span<const Traveller> travellers) {
  Arena::Scope scope(ctx.scratch);
  const int size = Team(ctx).size();
  const Tensor send = AllocateMessage(ctx, travellers), received = AllocateMessage(ctx, travellers);
  ForEachPart(travellers, send, [&](const Traveller& traveller, int rank, const Tensor& part) {
    ForEachRun(ctx, traveller, rank, part, [&](const Tensor& all_rows, const Tensor& part_rows) {
      ops::Copy(ctx.stream, all_rows, part_rows);
    });
  });
  Team(ctx).AllToAll(send, received, ctx.stream);
  ForEachPart(travellers, received, [&](const Traveller& traveller, int rank, const Tensor& part) {
    ops::Copy(ctx.stream, part, Groups(traveller.mine, rank, size));
  });
}

// The attention of this rank's share of the groups over all the team's tokens. Dropout is keyed by
// the tokens of the queries.
ops::Attention OfShare(const LayerContext& ctx, const ContextAttention& attention,
                       const Tensor& q_TGRD) {
  ops::Attention share = attention.whole;
  share.dropout.sample_T = attention.queries->sample_T;
  share.dropout.position_T = attention.queries->sample_position_T;
  share.dropout.first_column += Team(ctx).rank() * q_TGRD.dim(1) * q_TGRD.dim(2);
  return share;
}

// The share's columns of a bias, or of its gradient.
Tensor Columns(const LayerContext& ctx, const Tensor& x_WN) {
  return Groups(x_WN, Team(ctx).rank(), Team(ctx).size());
}

Tensor AllocateBias(const LayerContext& ctx, Arena* arena, const Tensor& x_WN) {
  return arena->Allocate(DType::kFloat32, Columns(ctx, x_WN).shape(), "relative positions");
}

// out += share.
void AddBiasGradient(const LayerContext& ctx, const Tensor& share_WN, const Tensor& out_WN) {
  const Tensor whole_WN =
      ctx.scratch->Allocate(DType::kFloat32, out_WN.shape(), "relative positions");
  ops::Zero(ctx.stream, whole_WN);
  ops::Copy(ctx.stream, share_WN, Columns(ctx, whole_WN));
  ops::Add(ctx.stream, whole_WN, out_WN);
}

}  // namespace

void AllToAllAttentionForward(const LayerContext& ctx, Arena* arena,
                              const ContextAttention& attention, const ops::AttentionInputs& in,
                              const Tensor& out_TGRD, AllToAllSaved* saved) {
  const auto allocate = [&](const Tensor& mine, const char* name) {
    return arena->Allocate(mine.dtype(), AllTokensOfShare(ctx, mine.shape()), name);
  };
  saved->in = {allocate(in.q_TGRD, "exchanged qkv"), allocate(in.k_UGD, "exchanged qkv"),
               allocate(in.v_UGD, "exchanged qkv")};
  saved->out_TGRD = allocate(in.q_TGRD, "exchanged attention output");
  const Shape& all = saved->out_TGRD.shape();
  saved->lse_TGR =
      arena->Allocate(DType::kFloat32, {all[0], all[1], all[2]}, "attention log-sum-exp");
  if (in.bias_WN) {
    saved->in.bias_WN = AllocateBias(ctx, arena, in.bias_WN);
    ops::Copy(ctx.stream, Columns(ctx, in.bias_WN), saved->in.bias_WN);
  }
  ToHeads(ctx, {{attention.queries, in.q_TGRD, saved->in.q_TGRD},
                {attention.keys, in.k_UGD, saved->in.k_UGD},
                {attention.keys, in.v_UGD, saved->in.v_UGD}});
  const ops::Attention share = OfShare(ctx, attention, saved->in.q_TGRD);
  if (Team(ctx).teams() == 1) {
    ops::AttentionForward(ctx.stream, share, saved->in, saved->out_TGRD, saved->lse_TGR);
  } else {
    RingAttentionForward(ctx, {share, attention.queries, attention.keys}, saved->in,
                         saved->out_TGRD, saved->lse_TGR);
  }
  ToTokens(ctx, {{attention.queries, out_TGRD, saved->out_TGRD}});
}

void AllToAllAttentionBackward(const LayerContext& ctx, const ContextAttention& attention,
                               const AllToAllSaved& saved, const Tensor& dout_TGRD,
                               const ops::AttentionInputs& gradients) {
  Arena::Scope scope(ctx.scratch);
  const auto like = [&](const Tensor& x) {
    return ctx.scratch->Allocate(x.dtype(), x.shape(), "exchanged gradients");
  };
  ops::AttentionInputs all = {like(saved.in.q_TGRD), like(saved.in.k_UGD), like(saved.in.v_UGD)};
  if (saved.in.bias_WN) {
    all.bias_WN = AllocateBias(ctx, ctx.scratch, gradients.bias_WN);
    ops::Zero(ctx.stream, all.bias_WN);
  }
  {
    Arena::Scope exchange(ctx.scratch);
    const Tensor dout_all = like(saved.out_TGRD);
    ToHeads(ctx, {{attention.queries, dout_TGRD, dout_all}});
    const ops::Attention share = OfShare(ctx, attention, saved.in.q_TGRD);
    if (Team(ctx).teams() == 1) {
      ops::AttentionBackward(ctx.stream, share, saved.in, saved.out_TGRD, saved.lse_TGR, dout_all,
                             all);
    } else {
      RingAttentionBackward(ctx, {share, attention.queries, attention.keys}, saved.in,
                            saved.out_TGRD, saved.lse_TGR, dout_all, all);
    }
  }
  ToTokens(ctx, {{attention.queries, gradients.q_TGRD, all.q_TGRD},
                 {attention.keys, gradients.k_UGD, all.k_UGD},
                 {attention.keys, gradients.v_UGD, all.v_UGD}});
  if (saved.in.bias_WN) AddBiasGradient(ctx, all.bias_WN, gradients.bias_WN);
}

}  // namespace megatron
