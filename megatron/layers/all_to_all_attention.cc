// The form of context_attention.h in which ranks exchange tokens for heads. A rank's share of the
// groups is cut into equal parts, halves where it can be halved, and ranks exchange one part while
// they compute with another. Heads do not depend on each other, so that the bits are those of the
// whole share.
#include <algorithm>
#include <vector>

#include "megatron/comm/overlap/async_group.h"
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
  // Starts what ProcessGroup::AllToAll does.
  AsyncCall StartAllToAll(const Tensor& in, const Tensor& out, const Stream& stream) const {
    return StartAsync(
        group_, stream, TimeCategory::kContextParallel,
        [=, size = size_, teams = teams()](const ProcessGroup& group, const Stream& lane) {
          if (teams == 1) return group.AllToAll(in, out, lane);
          ExchangeInTeam(group, size, in, out, lane);
        });
  }

 private:
  static void ExchangeInTeam(const ProcessGroup& group, int size, const Tensor& in,
                             const Tensor& out, const Stream& stream) {
    const int me = group.rank() % size, first = group.rank() - me;
    std::vector<Transfer> sends, receives;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == me) continue;
      sends.push_back({first + peer, in.Select(0, peer)});
      receives.push_back({first + peer, out.Select(0, peer)});
    }
    group.Exchange(sends, receives, stream);
    ops::Copy(stream, in.Select(0, me), out.Select(0, me));
  }

  const ProcessGroup& group_;
  const int size_;
};

// One of `count` equal parts of a rank's share of the groups.
struct Part {
  int index, count;
};

// The fewest equal parts, but more than one, of a share of more than one group.
int PartsOf(const LayerContext& ctx, const ops::AttentionInputs& in) {
  const int64_t share = in.k_UGD.dim(1) / Team(ctx).size();
  for (int64_t parts = 2; parts < share; ++parts) {
    if (share % parts == 0) return static_cast<int>(parts);
  }
  return static_cast<int>(std::max<int64_t>(share, 1));
}

// One of the tensors that travel together: this rank's tokens of all groups, [T, G, ...], and all
// the team's tokens of a part of its share of the groups.
struct Traveller {
  const ContextBatch* tokens;
  Tensor mine, all;
};

// The shape of all the team's tokens of the share, part by part.
Shape AllTokensOfShare(const LayerContext& ctx, const Shape& mine, int parts) {
  const int64_t size = Team(ctx).size();
  CHECK_EQ(mine[1] % (size * parts), 0) << "groups, over " << size << " context-parallel ranks";
  std::vector<int64_t> all = mine.dims();
  all[0] *= size;
  all[1] /= size * parts;
  all.insert(all.begin(), parts);
  return Shape(all);
}

// The groups, or columns, of a part of a rank's share.
Tensor Groups(const LayerContext& ctx, const Tensor& x, int rank, const Part& part) {
  const int64_t groups = x.dim(1) / (Team(ctx).size() * part.count);
  const int64_t place = rank * part.count + part.index;
  return x.Slice(1, place * groups, (place + 1) * groups);
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

// Messages on their way between all ranks of the team. They lie in ctx.scratch, where the caller's
// scope must hold them until they are unpacked. For each rank they have one tensor after the other:
// its tokens of a part of one share of the groups.
struct Exchange {
  std::vector<Traveller> travellers;
  Part part;
  Tensor send, received;
  AsyncCall call;
};

Exchange Allocate(const LayerContext& ctx, const std::vector<Traveller>& travellers, Part part) {
  int64_t elements = 0;
  for (const Traveller& traveller : travellers) elements += traveller.mine.numel() / part.count;
  const int64_t size = Team(ctx).size();
  const auto message = [&] {
    return ctx.scratch->Allocate(travellers[0].mine.dtype(), {size, elements / size},
                                 "exchanged heads");
  };
  const Tensor send = message();
  return {travellers, part, send, message(), AsyncCall()};
}

// Calls fn(traveller, rank, piece) for each piece of a message.
template <typename Fn>
void ForEachPiece(const Exchange& exchange, const Tensor& message_CE, Fn fn) {
  const int size = static_cast<int>(message_CE.dim(0));
  for (int rank = 0; rank < size; ++rank) {
    int64_t begin = 0;
    for (const Traveller& traveller : exchange.travellers) {
      Shape shape = traveller.mine.shape();
      shape[1] /= size * exchange.part.count;
      const int64_t end = begin + shape.numel();
      fn(traveller, rank, message_CE.Select(0, rank).Slice(0, begin, end).View(shape));
      begin = end;
    }
  }
}

// Starts to bring `all` of each tensor from every rank's own tokens.
Exchange StartToHeads(const LayerContext& ctx, const std::vector<Traveller>& travellers,
                      Part part) {
  Exchange exchange = Allocate(ctx, travellers, part);
  ForEachPiece(exchange, exchange.send,
               [&](const Traveller& traveller, int rank, const Tensor& piece) {
                 ops::Copy(ctx.stream, Groups(ctx, traveller.mine, rank, part), piece);
               });
  exchange.call = Team(ctx).StartAllToAll(exchange.send, exchange.received, ctx.stream);
  return exchange;
}

void FinishToHeads(const LayerContext& ctx, const Exchange& exchange) {
  exchange.call.Wait();
  ForEachPiece(
      exchange, exchange.received, [&](const Traveller& traveller, int rank, const Tensor& piece) {
        ForEachRun(ctx, traveller, rank, piece, [&](const Tensor& all_rows, const Tensor& rows) {
          ops::Copy(ctx.stream, rows, all_rows);
        });
      });
}

// Starts to bring `mine` of each tensor from what every rank has of all tokens.
Exchange StartToTokens(const LayerContext& ctx, const std::vector<Traveller>& travellers,
                       Part part) {
  Exchange exchange = Allocate(ctx, travellers, part);
  ForEachPiece(
      exchange, exchange.send, [&](const Traveller& traveller, int rank, const Tensor& piece) {
        ForEachRun(ctx, traveller, rank, piece, [&](const Tensor& all_rows, const Tensor& rows) {
          ops::Copy(ctx.stream, all_rows, rows);
        });
      });
  exchange.call = Team(ctx).StartAllToAll(exchange.send, exchange.received, ctx.stream);
  return exchange;
}

void FinishToTokens(const LayerContext& ctx, const Exchange& exchange) {
  exchange.call.Wait();
  ForEachPiece(exchange, exchange.received,
               [&](const Traveller& traveller, int rank, const Tensor& piece) {
                 ops::Copy(ctx.stream, piece, Groups(ctx, traveller.mine, rank, exchange.part));
               });
}

// What a part of the share computes with. `x` has all parts, one after the other.
ops::AttentionInputs PartOf(const ops::AttentionInputs& x, const Part& part) {
  return {x.q_TGRD.Select(0, part.index), x.k_UGD.Select(0, part.index),
          x.v_UGE.Select(0, part.index), x.bias_WN ? x.bias_WN.Select(0, part.index) : Tensor()};
}

// A part's heads in the sinks of all this rank's heads, or in their gradient.
Tensor Sinks(const LayerContext& ctx, const Tensor& sink_N, const Part& part) {
  if (!sink_N) return Tensor();
  const int64_t heads = sink_N.numel() / (Team(ctx).size() * part.count);
  const int64_t first = (Team(ctx).rank() * part.count + part.index) * heads;
  return sink_N.Slice(0, first, first + heads);
}

// The attention of a part of this rank's share of the groups over all the team's tokens. Dropout is
// keyed by the tokens of the queries.
ContextAttention OfPart(const LayerContext& ctx, const ContextAttention& attention,
                        const Tensor& q_TGRD, const Part& part) {
  ops::Attention own = attention.whole;
  own.dropout.sample_T = attention.queries->sample_T;
  own.dropout.position_T = attention.queries->sample_position_T;
  own.dropout.first_column +=
      (Team(ctx).rank() * part.count + part.index) * q_TGRD.dim(1) * q_TGRD.dim(2);
  return {own, attention.queries, attention.keys};
}

// A part's columns of a bias, or of its gradient.
Tensor Columns(const LayerContext& ctx, const Tensor& x_WN, const Part& part) {
  return Groups(ctx, x_WN, Team(ctx).rank(), part);
}

Tensor AllocateBias(const LayerContext& ctx, Arena* arena, const Tensor& x_WN, int parts) {
  const Shape part = Columns(ctx, x_WN, {0, parts}).shape();
  return arena->Allocate(DType::kFloat32, {parts, part[0], part[1]}, "relative positions");
}

// out += the part's gradient.
void AddBiasGradient(const LayerContext& ctx, const Tensor& part_WN, const Part& part,
                     const Tensor& out_WN) {
  const Tensor whole_WN =
      ctx.scratch->Allocate(DType::kFloat32, out_WN.shape(), "relative positions");
  ops::Zero(ctx.stream, whole_WN);
  ops::Copy(ctx.stream, part_WN, Columns(ctx, whole_WN, part));
  ops::Add(ctx.stream, whole_WN, out_WN);
}

void Attend(const LayerContext& ctx, const ContextAttention& attention, const AllToAllSaved& saved,
            const Tensor& sink_N, const Part& part) {
  ops::AttentionInputs in = PartOf(saved.in, part);
  in.sink_N = Sinks(ctx, sink_N, part);
  const Tensor out = saved.out_TGRE.Select(0, part.index);
  const Tensor lse = saved.lse_TGR.Select(0, part.index);
  const ContextAttention own = OfPart(ctx, attention, in.q_TGRD, part);
  if (Team(ctx).teams() == 1) {
    ops::AttentionForward(ctx.stream, own.whole, in, out, lse);
  } else {
    RingAttentionForward(ctx, own, in, out, lse);
  }
}

void AttendBackward(const LayerContext& ctx, const ContextAttention& attention,
                    const AllToAllSaved& saved, const Tensor& sink_N, const Tensor& dout,
                    const Part& part, const ops::AttentionInputs& gradients) {
  ops::AttentionInputs in = PartOf(saved.in, part), out_gradients = PartOf(gradients, part);
  in.sink_N = Sinks(ctx, sink_N, part);
  out_gradients.sink_N = Sinks(ctx, gradients.sink_N, part);
  const Tensor out = saved.out_TGRE.Select(0, part.index);
  const Tensor lse = saved.lse_TGR.Select(0, part.index);
  const ContextAttention own = OfPart(ctx, attention, in.q_TGRD, part);
  if (Team(ctx).teams() == 1) {
    ops::AttentionBackward(ctx.stream, own.whole, in, out, lse, dout, out_gradients);
  } else {
    RingAttentionBackward(ctx, own, in, out, lse, dout, out_gradients);
  }
}

std::vector<Traveller> TravellersOf(const LayerContext& ctx,
                                    const std::vector<StripedTensor>& tensors) {
  const ContextBatch& tokens = ctx.batch->context;
  CHECK_EQ(tokens.sample_length, 0);
  CHECK_EQ(tokens.team_size, ctx.context_group.size());
  std::vector<Traveller> travellers;
  for (const StripedTensor& tensor : tensors)
    travellers.push_back({&tokens, tensor.mine, tensor.all});
  return travellers;
}

}  // namespace

namespace {

// The context in which all ranks are one team.
struct OneTeam {
  MicroBatch batch;
  LayerContext ctx;

  explicit OneTeam(const LayerContext& of_teams) : batch(*of_teams.batch), ctx(of_teams) {
    const int team_size = batch.context.team_size;
    CHECK(team_size == 1 || team_size == ctx.context_group.size()) << "teams of " << team_size;
    batch.context.team_size = ctx.context_group.size();
    ctx.batch = &batch;
  }
};

}  // namespace

void ExchangeAllToHeads(const LayerContext& ctx, const Tensor& mine, const Tensor& all) {
  const OneTeam team(ctx);
  Arena::Scope scope(ctx.scratch);
  FinishToHeads(team.ctx, StartToHeads(team.ctx, {{&team.batch.context, mine, all}}, {0, 1}));
}

void ExchangeAllToTokens(const LayerContext& ctx, const Tensor& mine, const Tensor& all) {
  const OneTeam team(ctx);
  Arena::Scope scope(ctx.scratch);
  FinishToTokens(team.ctx, StartToTokens(team.ctx, {{&team.batch.context, mine, all}}, {0, 1}));
}

void ExchangeToHeads(const LayerContext& ctx, const std::vector<StripedTensor>& tensors) {
  Arena::Scope scope(ctx.scratch);
  FinishToHeads(ctx, StartToHeads(ctx, TravellersOf(ctx, tensors), {0, 1}));
}

void ExchangeToTokens(const LayerContext& ctx, const std::vector<StripedTensor>& tensors) {
  Arena::Scope scope(ctx.scratch);
  FinishToTokens(ctx, StartToTokens(ctx, TravellersOf(ctx, tensors), {0, 1}));
}

void AllToAllAttentionForward(const LayerContext& ctx, Arena* arena,
                              const ContextAttention& attention, const ops::AttentionInputs& in,
                              const Tensor& out_TGRE, AllToAllSaved* saved) {
  const int parts = PartsOf(ctx, in);
  const auto allocate = [&](const Tensor& mine, const char* name) {
    return arena->Allocate(mine.dtype(), AllTokensOfShare(ctx, mine.shape(), parts), name);
  };
  saved->in = {allocate(in.q_TGRD, "exchanged qkv"), allocate(in.k_UGD, "exchanged qkv"),
               allocate(in.v_UGE, "exchanged qkv")};
  saved->out_TGRE = allocate(out_TGRE, "exchanged attention output");
  const Shape& all = saved->out_TGRE.shape();
  saved->lse_TGR =
      arena->Allocate(DType::kFloat32, {all[0], all[1], all[2], all[3]}, "attention log-sum-exp");
  if (in.bias_WN) {
    saved->in.bias_WN = AllocateBias(ctx, arena, in.bias_WN, parts);
    for (int i = 0; i < parts; ++i) {
      ops::Copy(ctx.stream, Columns(ctx, in.bias_WN, {i, parts}), saved->in.bias_WN.Select(0, i));
    }
  }
  const Part last = {parts - 1, parts};
  {
    Arena::Scope scope(ctx.scratch);
    std::vector<Exchange> arriving;
    for (int i = 0; i < parts; ++i) {
      const ops::AttentionInputs to = PartOf(saved->in, {i, parts});
      arriving.push_back(StartToHeads(ctx,
                                      {{attention.queries, in.q_TGRD, to.q_TGRD},
                                       {attention.keys, in.k_UGD, to.k_UGD},
                                       {attention.keys, in.v_UGE, to.v_UGE}},
                                      {i, parts}));
    }
    for (int i = 0; i < last.index; ++i) {
      FinishToHeads(ctx, arriving[i]);
      Attend(ctx, attention, *saved, in.sink_N, {i, parts});
    }
    FinishToHeads(ctx, arriving[last.index]);
  }
  Arena::Scope scope(ctx.scratch);
  std::vector<Exchange> leaving;
  const auto leave = [&](int i) {
    leaving.push_back(StartToTokens(
        ctx, {{attention.queries, out_TGRE, saved->out_TGRE.Select(0, i)}}, {i, parts}));
  };
  for (int i = 0; i < last.index; ++i) leave(i);
  Attend(ctx, attention, *saved, in.sink_N, last);
  leave(last.index);
  for (const Exchange& exchange : leaving) FinishToTokens(ctx, exchange);
}

// Gradients of all parts but the last leave while the last is computed, and are unpacked before the
// last leaves: the messages of both, beside the gradient of the output, would take more memory.
void AllToAllAttentionBackward(const LayerContext& ctx, const ContextAttention& attention,
                               const AllToAllSaved& saved, const Tensor& sink_N,
                               const Tensor& dout_TGRE, const ops::AttentionInputs& gradients) {
  Arena::Scope scope(ctx.scratch);
  const int parts = static_cast<int>(saved.out_TGRE.dim(0));
  const Part last = {parts - 1, parts};
  const auto like = [&](const Tensor& x) {
    return ctx.scratch->Allocate(x.dtype(), x.shape(), "exchanged gradients");
  };
  ops::AttentionInputs all = {like(saved.in.q_TGRD), like(saved.in.k_UGD), like(saved.in.v_UGE)};
  all.sink_N = gradients.sink_N;
  if (saved.in.bias_WN) {
    all.bias_WN = AllocateBias(ctx, ctx.scratch, gradients.bias_WN, parts);
    ops::Zero(ctx.stream, all.bias_WN);
  }
  const auto leave = [&](int i) {
    const ops::AttentionInputs from = PartOf(all, {i, parts});
    return StartToTokens(ctx,
                         {{attention.queries, gradients.q_TGRD, from.q_TGRD},
                          {attention.keys, gradients.k_UGD, from.k_UGD},
                          {attention.keys, gradients.v_UGE, from.v_UGE}},
                         {i, parts});
  };
  {
    Arena::Scope exchange(ctx.scratch);
    const Tensor dout_all = like(saved.out_TGRE);
    const auto attend = [&](const Part& part) {
      AttendBackward(ctx, attention, saved, sink_N, dout_all.Select(0, part.index), part, all);
    };
    {
      Arena::Scope messages(ctx.scratch);
      std::vector<Exchange> arriving;
      for (int i = 0; i < parts; ++i) {
        arriving.push_back(
            StartToHeads(ctx, {{attention.queries, dout_TGRE, dout_all.Select(0, i)}}, {i, parts}));
      }
      for (int i = 0; i < last.index; ++i) {
        FinishToHeads(ctx, arriving[i]);
        attend({i, parts});
      }
      FinishToHeads(ctx, arriving[last.index]);
    }
    std::vector<Exchange> leaving;
    for (int i = 0; i < last.index; ++i) leaving.push_back(leave(i));
    attend(last);
    for (const Exchange& exchange : leaving) FinishToTokens(ctx, exchange);
  }
  FinishToTokens(ctx, leave(last.index));
  if (!saved.in.bias_WN) return;
  for (int i = 0; i < parts; ++i)
    AddBiasGradient(ctx, all.bias_WN.Select(0, i), {i, parts}, gradients.bias_WN);
}

}  // namespace megatron
