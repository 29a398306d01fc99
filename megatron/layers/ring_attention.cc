// The forms of context_attention.h in which keys and values arrive rank by rank.
#include <vector>

#include "absl/container/inlined_vector.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/layers/context_attention.h"
#include "megatron/ops/elementwise.h"

namespace megatron {
namespace {

// Keys and values of some groups of one rank, or their gradients, in one piece, as they travel: all
// keys, then all values.
struct PackedKeys {
  Tensor all;
  Shape k_shape, v_shape;

  Tensor k_UGD() const { return all.Slice(0, 0, k_shape.numel()).View(k_shape); }
  Tensor v_UGE() const { return all.Slice(0, k_shape.numel(), all.numel()).View(v_shape); }
};

int64_t PackedSize(const ops::AttentionInputs& in) { return in.k_UGD.numel() + in.v_UGE.numel(); }

PackedKeys AllocateKeys(Arena* arena, DType dtype, const ops::AttentionInputs& in,
                        const char* name) {
  return {arena->Allocate(dtype, {PackedSize(in)}, name), in.k_UGD.shape(), in.v_UGE.shape()};
}

void CopyKeys(const Stream& stream, const ops::AttentionInputs& in, const PackedKeys& packed) {
  ops::Copy(stream, in.k_UGD, packed.k_UGD());
  ops::Copy(stream, in.v_UGE, packed.v_UGE());
}

void TakeGradients(const Stream& stream, const PackedKeys& packed,
                   const ops::AttentionInputs& gradients) {
  ops::Copy(stream, packed.k_UGD(), gradients.k_UGD);
  ops::Copy(stream, packed.v_UGE(), gradients.v_UGE);
}

// Memory for fp32 sums: x itself, or memory whose content FromFp32 rounds into x.
Tensor Fp32Of(const LayerContext& ctx, const Tensor& x_TGRD) {
  if (x_TGRD.dtype() == DType::kFloat32) return x_TGRD;
  return ctx.scratch->Allocate(DType::kFloat32, x_TGRD.shape(), "attention sum");
}

void FromFp32(const Stream& stream, const Tensor& sum_TGRD, const Tensor& x_TGRD) {
  if (x_TGRD.dtype() != DType::kFloat32) ops::Copy(stream, sum_TGRD, x_TGRD);
}

// The queries of this rank's team, and the keys of team `source`.
ops::Attention OfSource(const LayerContext& ctx, const ContextAttention& attention, int source) {
  const int team = ctx.context_group.rank() / attention.queries->team_size;
  ops::Attention block = attention.whole;
  block.cu_seqlens_q = attention.queries->cu_seqlens.Select(0, team);
  block.cu_seqlens_k = attention.keys->cu_seqlens.Select(0, source);
  block.place_q_T = attention.queries->place_CT.Select(0, team);
  block.place_k_U = attention.keys->place_CT.Select(0, source);
  return block;
}

ops::AttentionInputs WithKeys(const Tensor& q_TGRD, const PackedKeys& packed, const Tensor& bias_WN,
                              const Tensor& sink_N) {
  return {q_TGRD, packed.k_UGD(), packed.v_UGE(), bias_WN, sink_N};
}

// Sinks count once, with the keys of one source.
Tensor IfFirst(int step, const Tensor& sink_N) { return step == 0 ? sink_N : Tensor(); }

// The ring of the ranks that have this one's place in their teams: the rank that sends to this one,
// the rank that receives from it, and whose keys are here in each step.
class Ring {
 public:
  Ring(const LayerContext& ctx, const ContextAttention& attention)
      : group_(ctx.context_group), stream_(ctx.stream), team_size_(attention.queries->team_size) {}

  int size() const { return group_.size() / team_size_; }
  // A team.
  int SourceAt(int step) const { return (group_.rank() / team_size_ - step + size()) % size(); }
  // A tensor to send, and where the one of the rank before is to go.
  struct Message {
    Tensor mine, next;
  };
  using Messages = absl::InlinedVector<Message, 2>;
  // Starts to send and to receive them at once.
  AsyncCall Pass(const Messages& messages) const {
    if (messages.empty()) return AsyncCall();
    const int to = (group_.rank() + team_size_) % group_.size();
    const int from = (group_.rank() - team_size_ + group_.size()) % group_.size();
    return StartAsync(group_, stream_, TimeCategory::kContextParallel,
                      [=](const ProcessGroup& group, const Stream& stream) {
                        absl::InlinedVector<Transfer, 2> sends, receives;
                        for (const Message& message : messages) {
                          sends.push_back({to, message.mine});
                          receives.push_back({from, message.next});
                        }
                        group.Exchange(sends, receives, stream);
                      });
  }

 private:
  const ProcessGroup& group_;
  const Stream& stream_;
  const int team_size_;
};

// Some of the groups, [begin, end), and every rank's keys and values of them.
struct GatheredGroups {
  int64_t begin, end;
  Shape k_shape, v_shape;  // those of one rank
  Tensor all_CK;           // a row for each rank
  AsyncCall arriving;

  // The keys and values of a rank, or their gradients, in a tensor like all_CK.
  PackedKeys Of(const Tensor& x_CK, int rank) const {
    return {x_CK.Select(0, rank), k_shape, v_shape};
  }
};

Tensor Part(const Tensor& x_TGRD, const GatheredGroups& groups) {
  return x_TGRD.Slice(1, groups.begin, groups.end);
}

// The columns of a part of the groups in a bias, or in its gradient: one for each query head.
Tensor Columns(const Tensor& x_WN, const ops::AttentionInputs& in, const GatheredGroups& groups) {
  const int64_t heads = in.q_TGRD.dim(2);
  return x_WN.Slice(1, groups.begin * heads, groups.end * heads);
}

// A part of the groups in the sinks, or in their gradient.
Tensor Sinks(const Tensor& sink_N, const ops::AttentionInputs& in, const GatheredGroups& groups) {
  if (!sink_N) return Tensor();
  const int64_t heads = in.q_TGRD.dim(2);
  return sink_N.Slice(0, groups.begin * heads, groups.end * heads);
}

// A copy, since attention takes no view of a bias.
Tensor CopyOfColumns(const LayerContext& ctx, const Tensor& x_WN, const ops::AttentionInputs& in,
                     const GatheredGroups& groups) {
  if (!x_WN) return Tensor();
  const Tensor columns = Columns(x_WN, in, groups);
  const Tensor copy = ctx.scratch->Allocate(DType::kFloat32, columns.shape(), "relative positions");
  ops::Copy(ctx.stream, columns, copy);
  return copy;
}

// Starts to gather keys and values, one half of the groups after the other.
std::vector<GatheredGroups> StartToGather(const LayerContext& ctx, const ops::AttentionInputs& in) {
  const int64_t groups = in.k_UGD.dim(1), half = groups / 2;
  std::vector<GatheredGroups> parts;
  if (half > 0) parts.push_back({0, half, {}, {}, {}, {}});
  parts.push_back({half, groups, {}, {}, {}, {}});
  for (GatheredGroups& part : parts) {
    const ops::AttentionInputs of_part = {Tensor(), Part(in.k_UGD, part), Part(in.v_UGE, part),
                                          Tensor(), Tensor()};
    part.k_shape = of_part.k_UGD.shape();
    part.v_shape = of_part.v_UGE.shape();
    const Tensor all_CK =
        ctx.scratch->Allocate(in.k_UGD.dtype(), {ctx.context_group.size(), PackedSize(of_part)},
                              "gathered keys and values");
    part.all_CK = all_CK;
    const PackedKeys mine = part.Of(all_CK, ctx.context_group.rank());
    CopyKeys(ctx.stream, of_part, mine);
    part.arriving =
        StartAsync(ctx.context_group, ctx.stream, TimeCategory::kContextParallel,
                   [mine_K = mine.all, all_CK](const ProcessGroup& group, const Stream& lane) {
                     group.AllGather(mine_K, all_CK.Flatten(), lane);
                   });
  }
  return parts;
}

// Starts to bring the sum of all ranks' gradients of this rank's keys to its place in theirs.
AsyncCall StartToReduce(const LayerContext& ctx, const Tensor& dall_CK) {
  const Tensor mine_K = dall_CK.Select(0, ctx.context_group.rank());
  return StartAsync(ctx.context_group, ctx.stream, TimeCategory::kContextParallel,
                    [=](const ProcessGroup& group, const Stream& lane) {
                      group.ReduceScatter(dall_CK.Flatten(), mine_K, lane);
                    });
}

// The queries of a part of the groups, and the keys of rank `source`.
ops::Attention OfGroups(const LayerContext& ctx, const ContextAttention& attention, int source,
                        const ops::AttentionInputs& in, const GatheredGroups& groups) {
  ops::Attention block = OfSource(ctx, attention, source);
  block.dropout.first_column += groups.begin * in.q_TGRD.dim(2);
  block.add_to_queries = source > 0;
  return block;
}

}  // namespace

void RingAttentionForward(const LayerContext& ctx, const ContextAttention& attention,
                          const ops::AttentionInputs& in, const Tensor& out_TGRE,
                          const Tensor& lse_TGR) {
  Arena::Scope scope(ctx.scratch);
  const Ring ring(ctx, attention);
  const Tensor sum_TGRD = Fp32Of(ctx, out_TGRE);
  PackedKeys keys = AllocateKeys(ctx.scratch, in.k_UGD.dtype(), in, "ring keys and values");
  PackedKeys next = AllocateKeys(ctx.scratch, in.k_UGD.dtype(), in, "ring keys and values");
  CopyKeys(ctx.stream, in, keys);
  for (int step = 0; step < ring.size(); ++step) {
    Ring::Messages messages;
    if (step + 1 < ring.size()) messages.push_back({keys.all, next.all});
    const AsyncCall passing = ring.Pass(messages);
    ops::Attention block = OfSource(ctx, attention, ring.SourceAt(step));
    block.add_to_queries = step > 0;
    ops::AttentionForward(ctx.stream, block,
                          WithKeys(in.q_TGRD, keys, in.bias_WN, IfFirst(step, in.sink_N)), sum_TGRD,
                          lse_TGR);
    passing.Wait();
    std::swap(keys, next);
  }
  FromFp32(ctx.stream, sum_TGRD, out_TGRE);
}

void RingAttentionBackward(const LayerContext& ctx, const ContextAttention& attention,
                           const ops::AttentionInputs& in, const Tensor& out_TGRE,
                           const Tensor& lse_TGR, const Tensor& dout_TGRE,
                           const ops::AttentionInputs& gradients) {
  Arena::Scope scope(ctx.scratch);
  const Ring ring(ctx, attention);
  const Tensor dq_TGRD = Fp32Of(ctx, gradients.q_TGRD);
  PackedKeys keys = AllocateKeys(ctx.scratch, in.k_UGD.dtype(), in, "ring keys and values");
  PackedKeys next = AllocateKeys(ctx.scratch, in.k_UGD.dtype(), in, "ring keys and values");
  // The sums that arrive, and this rank's summand: of this step, and with what arrived added, of
  // the step before, which is being sent.
  const PackedKeys arriving = AllocateKeys(ctx.scratch, DType::kFloat32, in, "ring gradients");
  PackedKeys dkeys = AllocateKeys(ctx.scratch, DType::kFloat32, in, "ring gradients");
  PackedKeys leaving = AllocateKeys(ctx.scratch, DType::kFloat32, in, "ring gradients");
  CopyKeys(ctx.stream, in, keys);
  for (int step = 0; step < ring.size(); ++step) {
    Ring::Messages messages;
    if (step + 1 < ring.size()) messages.push_back({keys.all, next.all});
    if (step > 0) messages.push_back({leaving.all, arriving.all});
    const AsyncCall passing = ring.Pass(messages);
    ops::Attention block = OfSource(ctx, attention, ring.SourceAt(step));
    block.add_to_queries = step > 0;
    ops::AttentionBackward(
        ctx.stream, block, WithKeys(in.q_TGRD, keys, in.bias_WN, IfFirst(step, in.sink_N)),
        out_TGRE, lse_TGR, dout_TGRE,
        WithKeys(dq_TGRD, dkeys, gradients.bias_WN, IfFirst(step, gradients.sink_N)));
    passing.Wait();
    if (step > 0) ops::Add(ctx.stream, arriving.all, dkeys.all);
    std::swap(keys, next);
    std::swap(dkeys, leaving);
  }
  // What arrives now are the gradients of this rank's own keys.
  Ring::Messages last;
  last.push_back({leaving.all, arriving.all});
  ring.Pass(last).Wait();
  FromFp32(ctx.stream, dq_TGRD, gradients.q_TGRD);
  TakeGradients(ctx.stream, arriving, gradients);
}

// The groups do not depend on each other, so that the bits are those of all at once.
void GatherAttentionForward(const LayerContext& ctx, const ContextAttention& attention,
                            const ops::AttentionInputs& in, const Tensor& out_TGRE,
                            const Tensor& lse_TGR) {
  Arena::Scope scope(ctx.scratch);
  const Tensor sum_TGRD = Fp32Of(ctx, out_TGRE);
  for (const GatheredGroups& part : StartToGather(ctx, in)) {
    const Tensor bias_WN = CopyOfColumns(ctx, in.bias_WN, in, part);
    part.arriving.Wait();
    for (int source = 0; source < ctx.context_group.size(); ++source) {
      ops::AttentionForward(ctx.stream, OfGroups(ctx, attention, source, in, part),
                            WithKeys(Part(in.q_TGRD, part), part.Of(part.all_CK, source), bias_WN,
                                     IfFirst(source, Sinks(in.sink_N, in, part))),
                            Part(sum_TGRD, part), Part(lse_TGR, part));
    }
  }
  FromFp32(ctx.stream, sum_TGRD, out_TGRE);
}

void GatherAttentionBackward(const LayerContext& ctx, const ContextAttention& attention,
                             const ops::AttentionInputs& in, const Tensor& out_TGRE,
                             const Tensor& lse_TGR, const Tensor& dout_TGRE,
                             const ops::AttentionInputs& gradients) {
  Arena::Scope scope(ctx.scratch);
  const Tensor dq_TGRD = Fp32Of(ctx, gradients.q_TGRD);
  const std::vector<GatheredGroups> parts = StartToGather(ctx, in);
  struct Reduction {
    Tensor dall_CK;
    AsyncCall call;
  };
  std::vector<Reduction> reductions;
  for (const GatheredGroups& part : parts) {
    const Tensor dall_CK =
        ctx.scratch->Allocate(DType::kFloat32, part.all_CK.shape(), "gathered gradients");
    const Tensor bias_WN = CopyOfColumns(ctx, in.bias_WN, in, part);
    const Tensor dbias_WN = CopyOfColumns(ctx, gradients.bias_WN, in, part);
    part.arriving.Wait();
    for (int source = 0; source < ctx.context_group.size(); ++source) {
      ops::AttentionBackward(ctx.stream, OfGroups(ctx, attention, source, in, part),
                             WithKeys(Part(in.q_TGRD, part), part.Of(part.all_CK, source), bias_WN,
                                      IfFirst(source, Sinks(in.sink_N, in, part))),
                             Part(out_TGRE, part), Part(lse_TGR, part), Part(dout_TGRE, part),
                             WithKeys(Part(dq_TGRD, part), part.Of(dall_CK, source), dbias_WN,
                                      IfFirst(source, Sinks(gradients.sink_N, in, part))));
    }
    if (dbias_WN) ops::Copy(ctx.stream, dbias_WN, Columns(gradients.bias_WN, in, part));
    reductions.push_back({dall_CK, StartToReduce(ctx, dall_CK)});
  }
  FromFp32(ctx.stream, dq_TGRD, gradients.q_TGRD);
  for (size_t i = 0; i < parts.size(); ++i) {
    reductions[i].call.Wait();
    TakeGradients(ctx.stream, parts[i].Of(reductions[i].dall_CK, ctx.context_group.rank()),
                  {{}, Part(gradients.k_UGD, parts[i]), Part(gradients.v_UGE, parts[i]), {}, {}});
  }
}

}  // namespace megatron
