#include "megatron/layers/self_attention.h"

#include <algorithm>

#include "megatron/layers/attention_options.h"
#include "megatron/layers/kv_cache.h"
#include "megatron/layers/tensor_parallel.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/rope.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

LinearOptions QkvLinear(const TransformerOptions& options, const std::string& name, int64_t layer) {
  LinearOptions linear;
  linear.name = name + ".linear_qkv";
  linear.input_size = options.hidden_size;
  const int64_t heads_per_group = options.num_attention_heads / options.num_query_groups;
  const int64_t key_size = options.kv_channels, value_size = options.value_size();
  if (options.output_gate) {
    linear.output_shape = {options.num_query_groups, 2 * heads_per_group + 2, key_size};
    linear.matrix.parts = {heads_per_group, heads_per_group, 1, 1};
  } else if (value_size == key_size) {
    linear.output_shape = {options.num_query_groups, heads_per_group + 2, key_size};
    linear.matrix.parts = {heads_per_group, 1, 1};
    linear.attention_layer = layer;
  } else {
    linear.output_shape = {options.num_query_groups, (heads_per_group + 1) * key_size + value_size};
    linear.matrix.parts = {heads_per_group * key_size, key_size, value_size};
  }
  linear.bias = options.qkv_bias;
  linear.init_std = options.init_std;
  linear.float8 = options.float8;
  linear.grid = options.grid;
  linear.overlap = HidesMessages(options);
  linear.adapter = options.lora.Of("linear_qkv");
  linear.keep_codes = !options.post_norm && !options.recompute.norm;
  return linear;
}

// Ranks that share each group of queries; 0 where no group is shared.
int RanksPerGroup(const TransformerOptions& options, const ProcessGroup& tensor_group) {
  if (tensor_group.size() <= options.num_query_groups) return 0;
  return tensor_group.size() / static_cast<int>(options.num_query_groups);
}

// `heads` heads of a group from `head` on, of its query heads, its key head and its value head.
OutputBlock BlockOfGroup(const TransformerOptions& options, int64_t group, int64_t head,
                         int64_t heads, int replicas) {
  const int64_t key_size = options.kv_channels, value_size = options.value_size();
  if (value_size == key_size) return {{group, head, 0}, {1, heads, key_size}, replicas};
  const int64_t last = options.num_attention_heads / options.num_query_groups + 1;
  const int64_t more = head + heads > last ? value_size - key_size : 0;
  return {{group, head * key_size}, {1, heads * key_size + more}, replicas};
}

// This rank's query heads of the group that it shares, or all of what it has.
LinearOptions OwnLinear(const TransformerOptions& options, const std::string& name, int64_t layer,
                        const ProcessGroup& tensor_group) {
  LinearOptions linear = QkvLinear(options, name, layer);
  const int sharing = RanksPerGroup(options, tensor_group);
  if (sharing == 0) return linear;
  const int64_t heads = options.num_attention_heads / tensor_group.size();
  linear.block = BlockOfGroup(options, tensor_group.rank() / sharing,
                              tensor_group.rank() % sharing * heads, heads, /*replicas=*/1);
  return linear;
}

std::unique_ptr<ColumnParallelLinear> SharedLinear(const TransformerOptions& options,
                                                   const std::string& name, int64_t layer,
                                                   const ProcessGroup& tensor_group) {
  const int sharing = RanksPerGroup(options, tensor_group);
  if (sharing == 0) return nullptr;
  LinearOptions linear = QkvLinear(options, name, layer);
  linear.block = BlockOfGroup(options, tensor_group.rank() / sharing,
                              options.num_attention_heads / options.num_query_groups, 2, sharing);
  return std::make_unique<ColumnParallelLinear>(linear, tensor_group);
}

// The norm of this rank's heads, `heads` of the whole model: of each of them, with gains of its own
// or those of all, or of all together.
NormOptions HeadNorm(const TransformerOptions& options, const std::string& name, int64_t heads,
                     const ProcessGroup& tensor_group) {
  NormOptions norm = {
      options.norm, name + ".weight", name + ".bias", options.kv_channels,
      /*partial_over_tensor=*/!options.qk_norm_all_heads && !options.qk_norm_each_head};
  if (norm.partial_over_tensor) return norm;
  if (options.qk_norm_each_head) {
    norm.heads = heads;
  } else {
    norm.size = heads * options.kv_channels;
  }
  norm.cut_ranks = tensor_group.size();
  norm.cut_rank = tensor_group.rank();
  return norm;
}

}  // namespace

SelfAttention::SelfAttention(const TransformerOptions& options, const std::string& name,
                             int64_t layer, const ProcessGroup& tensor_group)
    : layer_(layer),
      groups_(std::max<int64_t>(1, options.num_query_groups / tensor_group.size())),
      heads_per_group_(options.num_attention_heads / tensor_group.size() / groups_),
      head_size_(options.kv_channels),
      value_size_(options.value_size()),
      gates_per_group_(options.output_gate ? heads_per_group_ : 0),
      recompute_(options.recompute.core_attention),
      qk_norm_(options.qk_norm),
      qk_norm_all_heads_(options.qk_norm_all_heads),
      rotates_(options.Rotates(layer)),
      has_window_(options.HasWindow(layer)),
      sink_(options.sink),
      dtype_(options.dtype),
      core_(SelfAttentionCore(options, layer, tensor_group)),
      in_chunks_({options.recompute.attention_chunk_tokens, groups_, heads_per_group_, head_size_,
                  value_size_, recompute_, dtype_},
                 core_),
      qkv_(OwnLinear(options, name, layer, tensor_group), tensor_group),
      kv_(SharedLinear(options, name, layer, tensor_group)),
      proj_(AttentionOutputLinear(options, name), tensor_group),
      q_norm_(HeadNorm(options, name + ".q_layernorm", options.num_attention_heads, tensor_group)),
      k_norm_(HeadNorm(options, name + ".k_layernorm", options.num_query_groups, tensor_group)) {
  if (sink_ == AttentionSink::kLearned) {
    softmax_offset_.name = name + ".core_attention.softmax_offset";
    softmax_offset_.sharding =
        SplitOverTensor({options.num_attention_heads}, 0, tensor_group.size(), tensor_group.rank());
    softmax_offset_.initializer = Initializer::Normal(options.init_std);
    softmax_offset_.weight_decay = false;
    CHECK(!options.grid.is_grid()) << name;
  }
  // A rank would have rows of other heads, or a share of a group.
  CHECK(!qk_norm_all_heads_ || (!in_chunks_.is_on() && kv_ == nullptr && !options.grid.is_grid()))
      << name;
  CHECK(!options.qk_norm_each_head ||
        (!qk_norm_all_heads_ && kv_ == nullptr && !options.grid.is_grid()))
      << name;
  // A rank that shares a group would have rows of two places, and codes of FP8 stand for what has
  // not been gated.
  CHECK(!has_gates() || (!in_chunks_.is_on() && kv_ == nullptr && !options.grid.is_grid() &&
                         !options.float8.enabled && value_size_ == head_size_))
      << name;
  if (!in_chunks_.is_on()) return;
  CHECK(options.causal && options.relative_positions.buckets == 0) << name;
  // Scales are made of a whole tensor.
  CHECK(!options.float8.enabled) << name;
}

Tensor SelfAttention::Packed(const Tensor& qkv_TGS) const {
  return qkv_TGS.View({qkv_TGS.dim(0), groups_ * packed_size()});
}

Tensor SelfAttention::OwnColumns(const Tensor& packed_TO) const {
  return packed_TO.Slice(1, 0, qkv_.output_size());
}

Tensor SelfAttention::SharedColumns(const Tensor& packed_TO) const {
  return packed_TO.Slice(1, qkv_.output_size(), packed_TO.dim(1));
}

void SelfAttention::Rotate(const LayerContext& ctx, const RotaryTables* rotary, bool inverse,
                           const Tensor& position_T, const Tensor& q_TGRD,
                           const Tensor& k_TGD) const {
  if (rotary == nullptr || !rotates_) return;
  for (const Tensor& x : {q_TGRD, k_TGD}) {
    ops::Rope(ctx.stream, rotary->cos_SP(has_window_), rotary->sin_SP(has_window_), position_T,
              rotary->interleaved(), inverse, x);
  }
}

void SelfAttention::NormalizeHeads(const LayerContext& ctx, const NormLayer& norm,
                                   const Tensor& heads, const Tensor& normed,
                                   NormLayer::Saved* saved) const {
  if (!qk_norm_all_heads_) return norm.Forward(ctx, heads, normed, saved);
  Arena::Scope scope(ctx.scratch);
  norm.Forward(ctx, JoinedHeads(ctx, heads), Joined(normed), saved);
  saved->x_TH = heads;
}

void SelfAttention::NormalizeHeadsBack(const LayerContext& ctx, NormLayer* norm, const Tensor& d,
                                       const NormLayer::Saved& saved) const {
  if (!qk_norm_all_heads_) return norm->Backward(ctx, d, Tensor(), d, saved);
  Arena::Scope scope(ctx.scratch);
  NormLayer::Saved of_rows = saved;
  of_rows.x_TH = JoinedHeads(ctx, saved.x_TH);
  const Tensor d_rows = JoinedHeads(ctx, d);
  norm->Backward(ctx, d_rows, Tensor(), d_rows, of_rows);
  ops::Copy(ctx.stream, d_rows.View(d.shape()), d);
}

Tensor SelfAttention::JoinedHeads(const LayerContext& ctx, const Tensor& heads) const {
  const Tensor copy = ctx.scratch->Allocate(dtype_, heads.shape(), "heads of a token");
  ops::Copy(ctx.stream, heads, copy);
  return Joined(copy);
}

Tensor SelfAttention::Sinks(const LayerContext& ctx) const {
  if (sink_ == AttentionSink::kLearned) return softmax_offset_.data;
  if (sink_ == AttentionSink::kNone) return Tensor();
  const Tensor zeros_N =
      ctx.scratch->Allocate(dtype_, {groups_ * heads_per_group_}, "attention sinks");
  ops::Zero(ctx.stream, zeros_N);
  return zeros_N;
}

Tensor SelfAttention::SinkGradients() const {
  return sink_ == AttentionSink::kLearned ? softmax_offset_.grad : Tensor();
}

ops::AttentionInputs SelfAttention::Inputs(const LayerContext& ctx, const Saved& saved) const {
  if (ctx.cached == nullptr) {
    return {saved.q_TGRD, saved.k_TGD, Values(saved.qkv_TGS), ctx.relative_bias_WN, Sinks(ctx)};
  }
  const KvCache& cache = *ctx.cached->cache;
  return {saved.q_TGRD, cache.Keys(layer_), cache.Values(layer_), ctx.relative_bias_WN, Sinks(ctx)};
}

void SelfAttention::PutInCache(const LayerContext& ctx, const Saved& saved) const {
  Arena::Scope scope(ctx.scratch);
  const Tensor new_TGW = ctx.scratch->Allocate(
      dtype_, {saved.k_TGD.dim(0), groups_, head_size_ + value_size_}, "new keys and values");
  ops::Copy(ctx.stream, saved.k_TGD, KeysOf(new_TGW));
  ops::Copy(ctx.stream, Values(saved.qkv_TGS), ValuesOf(new_TGW));
  ctx.cached->cache->Put(ctx.stream, layer_, new_TGW, ctx.cached->place_T11);
}

void SelfAttention::Attend(const LayerContext& ctx, Arena* output, Arena* others,
                           Saved* saved) const {
  saved->context_TGRE = output->Allocate(dtype_, OutputShape(saved->q_TGRD), "attention output");
  core_.Forward(ctx, others, Inputs(ctx, *saved), saved->context_TGRE, &saved->core);
}

Tensor SelfAttention::GateOperands(const LayerContext& ctx, const Saved& saved) const {
  const int64_t tokens = saved.context_TGRE.dim(0), width = heads_per_group_ * head_size_;
  const Tensor operands =
      ctx.scratch->Allocate(dtype_, {tokens, 2 * groups_, width}, "attention gates");
  ops::Copy(ctx.stream, Gates(saved.qkv_TGS), operands.Slice(1, 0, groups_));
  ops::Copy(ctx.stream, saved.context_TGRE.View({tokens, groups_, width}),
            operands.Slice(1, groups_, 2 * groups_));
  return operands.View({tokens, 2 * groups_ * width});
}

Tensor SelfAttention::Gated(const LayerContext& ctx, Arena* arena, const Saved& saved) const {
  const Shape flat = {saved.context_TGRE.dim(0), groups_ * heads_per_group_ * value_size_};
  if (!has_gates()) return saved.context_TGRE.View(flat);
  const Tensor gated_TI = arena->Allocate(dtype_, flat, "gated attention output");
  Arena::Scope scope(ctx.scratch);
  ops::GateForward(ctx.stream, ops::Activation::kSigmoid, GateOperands(ctx, saved), gated_TI);
  return gated_TI;
}

void SelfAttention::GateBack(const LayerContext& ctx, const Saved& saved,
                             const Tensor& dcontext_TGRE, const Tensor& dqkv_TGS) const {
  if (!has_gates()) return;
  Arena::Scope scope(ctx.scratch);
  const int64_t tokens = dcontext_TGRE.dim(0), width = heads_per_group_ * head_size_;
  const Tensor operands = GateOperands(ctx, saved);
  const Tensor gradients =
      ctx.scratch->Allocate(dtype_, {tokens, 2 * groups_, width}, "attention gates");
  ops::GateBackward(ctx.stream, ops::Activation::kSigmoid,
                    dcontext_TGRE.View({tokens, groups_ * width}), operands,
                    gradients.View(operands.shape()));
  ops::Copy(ctx.stream, gradients.Slice(1, 0, groups_), Gates(dqkv_TGS));
  ops::Copy(ctx.stream, gradients.Slice(1, groups_, 2 * groups_),
            dcontext_TGRE.View({tokens, groups_, width}));
}

void SelfAttention::Forward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& x_TH,
                            const Tensor& y_TH, Saved* saved) const {
  const TraceSpan span(ctx.stream, "attention");
  if (in_chunks_.is_on()) return ForwardInChunks(ctx, rotary, x_TH, y_TH, saved);
  Arena::Scope scope(ctx.scratch);
  const int64_t tokens = ctx.batch->num_tokens();
  const Shape packed{tokens, groups_, packed_size()};
  Arena* const core_arena = ctx.SavedBy(OffloadModule::kCoreAttention);
  const bool keeps_qkv = !core_.KeepsInputs(ctx) || recompute_ || qk_norm_ || has_gates();
  saved->qkv_TGS =
      (keeps_qkv ? core_arena : ctx.scratch)->Allocate(dtype_, packed, "attention qkv");
  const Tensor packed_TO = Packed(saved->qkv_TGS);
  const LayerContext of_qkv = ctx.Of(OffloadModule::kQkvLinear);
  qkv_.Forward(of_qkv, x_TH, OwnColumns(packed_TO), &saved->qkv);
  if (kv_ != nullptr) kv_->Forward(of_qkv, x_TH, SharedColumns(packed_TO), &saved->kv);
  saved->q_TGRD = Queries(saved->qkv_TGS);
  saved->k_TGD = Keys(saved->qkv_TGS);
  if (qk_norm_) {
    saved->q_TGRD = core_arena->Allocate(dtype_, saved->q_TGRD.shape(), "attention normalized q");
    saved->k_TGD = core_arena->Allocate(dtype_, saved->k_TGD.shape(), "attention normalized k");
    NormalizeHeads(ctx, q_norm_, Queries(saved->qkv_TGS), saved->q_TGRD, &saved->q_norm);
    NormalizeHeads(ctx, k_norm_, Keys(saved->qkv_TGS), saved->k_TGD, &saved->k_norm);
  }
  Rotate(ctx, rotary, /*inverse=*/false, ctx.inner_batch().position_T, saved->q_TGRD, saved->k_TGD);
  if (ctx.cached != nullptr) PutInCache(ctx, *saved);
  const LayerContext of_proj = ctx.Of(OffloadModule::kAttentionProj);
  Attend(ctx, recompute_ ? ctx.scratch : of_proj.saved, recompute_ ? ctx.scratch : core_arena,
         saved);
  if (ctx.activations != nullptr) core_.MeasureScores(ctx, Inputs(ctx, *saved));
  proj_.Forward(of_proj, Gated(ctx, ctx.scratch, *saved), y_TH, &saved->proj);
}

void SelfAttention::Backward(const LayerContext& ctx, const RotaryTables* rotary,
                             const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved) {
  const TraceSpan span(ctx.stream, "attention");
  if (in_chunks_.is_on()) return BackwardInChunks(ctx, rotary, dy_TH, dx_TH, saved);
  Arena::Scope scope(ctx.scratch);
  const int64_t tokens = ctx.batch->num_tokens();
  const Shape flat_context{tokens, groups_ * heads_per_group_ * value_size_};
  if (recompute_) Attend(ctx, ctx.kept(), ctx.kept(), saved);
  if (recompute_ || has_gates()) saved->proj.x_TI = Gated(ctx, ctx.kept(), *saved);
  const Tensor dcontext_TGRE =
      ctx.scratch->Allocate(dtype_, saved->context_TGRE.shape(), "attention gradient");
  proj_.BackwardInput(ctx, dy_TH, dcontext_TGRE.View(flat_context), &saved->proj);

  const Tensor dqkv_TGS =
      ctx.kept()->Allocate(dtype_, saved->qkv_TGS.shape(), "attention gradient");
  GateBack(ctx, *saved, dcontext_TGRE, dqkv_TGS);
  const Tensor dq_TGRD = Queries(dqkv_TGS), dk_TGD = Keys(dqkv_TGS);
  core_.Backward(
      ctx, Inputs(ctx, *saved), saved->context_TGRE, dcontext_TGRE,
      {dq_TGRD, dk_TGD, Values(dqkv_TGS), ctx.relative_bias_gradient_WN, SinkGradients()},
      saved->core);
  Rotate(ctx, rotary, /*inverse=*/true, ctx.inner_batch().position_T, dq_TGRD, dk_TGD);
  if (qk_norm_) {
    NormalizeHeadsBack(ctx, &q_norm_, dq_TGRD, saved->q_norm);
    NormalizeHeadsBack(ctx, &k_norm_, dk_TGD, saved->k_norm);
  }
  const Tensor dpacked_TO = Packed(dqkv_TGS);
  const AsyncCall reducing = qkv_.BackwardInput(ctx, OwnColumns(dpacked_TO), dx_TH, &saved->qkv);
  AsyncCall reducing_shared;
  Tensor dshared_TH;
  if (kv_ != nullptr) {
    dshared_TH = ctx.scratch->Allocate(dtype_, dx_TH.shape(), "attention gradient");
    saved->kv.x_TI = saved->qkv.x_TI;
    reducing_shared = kv_->BackwardInput(ctx, SharedColumns(dpacked_TO), dshared_TH, &saved->kv);
  }
  if (!ctx.defers()) BackwardWeight(ctx, saved);
  reducing.Wait();
  reducing_shared.Wait();
  if (kv_ != nullptr)
    ops::BiasDropoutAdd(ctx.stream, ops::Dropout(), dshared_TH, Tensor(), dx_TH, dx_TH);
}

void SelfAttention::BackwardWeight(const LayerContext& ctx, Saved* saved) {
  if (in_chunks_.is_on()) return;
  proj_.BackwardWeight(ctx, saved->proj);
  qkv_.BackwardWeight(ctx, saved->qkv);
  if (kv_ != nullptr) kv_->BackwardWeight(ctx, saved->kv);
}

Tensor SelfAttention::AllocatePacked(const LayerContext& ctx, const AttentionChunk& chunk,
                                     const char* name) const {
  return ctx.scratch->Allocate(dtype_, {chunk.rows(), groups_, packed_size()}, name);
}

Tensor SelfAttention::ProjectChunk(const LayerContext& ctx, const AttentionChunk& chunk,
                                   const Tensor& x_TH) const {
  const Tensor qkv_CGS = AllocatePacked(ctx, chunk, "attention qkv");
  LinearSaved forgotten;
  qkv_.Forward(ctx, chunk.RowsOf(x_TH), OwnColumns(Packed(qkv_CGS)), &forgotten);
  if (kv_ != nullptr)
    kv_->Forward(ctx, chunk.RowsOf(x_TH), SharedColumns(Packed(qkv_CGS)), &forgotten);
  return qkv_CGS;
}

Tensor SelfAttention::MakeChunk(const LayerContext& ctx, const RotaryTables* rotary,
                                const AttentionChunk& chunk, const Tensor& x_TH,
                                const Tensor& q_CGRD, const Tensor& k_CGD) const {
  const Tensor qkv_CGS = ProjectChunk(ctx, chunk, x_TH);
  if (qk_norm_) {
    const LayerContext forgetting = ctx.SavingIn(ctx.scratch);
    NormLayer::Saved forgotten;
    q_norm_.Forward(forgetting, Queries(qkv_CGS), q_CGRD, &forgotten);
    k_norm_.Forward(forgetting, Keys(qkv_CGS), k_CGD, &forgotten);
  } else {
    ops::Copy(ctx.stream, Queries(qkv_CGS), q_CGRD);
    ops::Copy(ctx.stream, Keys(qkv_CGS), k_CGD);
  }
  Rotate(ctx, rotary, /*inverse=*/false, chunk.RowsOf(ctx.batch->position_T), q_CGRD, k_CGD);
  return Values(qkv_CGS);
}

void SelfAttention::ProjectChunkBack(const LayerContext& ctx, const RotaryTables* rotary,
                                     const AttentionChunk& chunk, const Tensor& dqkv_CGS,
                                     const Tensor& x_TH, const Tensor& dx_TH) {
  Arena::Scope scope(ctx.scratch);
  const Tensor dq = Queries(dqkv_CGS), dk = Keys(dqkv_CGS);
  Rotate(ctx, rotary, /*inverse=*/true, chunk.RowsOf(ctx.batch->position_T), dq, dk);
  if (qk_norm_) {
    // What was in front of the norms is computed again.
    Arena::Scope norm_scope(ctx.scratch);
    const LayerContext again = ctx.SavingIn(ctx.scratch);
    const Tensor qkv_CGS = ProjectChunk(ctx, chunk, x_TH);
    const Tensor normed_CGRD = ctx.scratch->Allocate(dtype_, dq.shape(), "attention normalized q");
    const Tensor normed_CGD = ctx.scratch->Allocate(dtype_, dk.shape(), "attention normalized k");
    NormLayer::Saved q_norm, k_norm;
    q_norm_.Forward(again, Queries(qkv_CGS), normed_CGRD, &q_norm);
    k_norm_.Forward(again, Keys(qkv_CGS), normed_CGD, &k_norm);
    q_norm_.Backward(ctx, dq, Tensor(), dq, q_norm);
    k_norm_.Backward(ctx, dk, Tensor(), dk, k_norm);
  }
  const Tensor dpacked_CO = Packed(dqkv_CGS), dx_CH = chunk.RowsOf(dx_TH);
  LinearSaved own, shared;
  own.x_TI = shared.x_TI = chunk.RowsOf(x_TH);
  const AsyncCall reducing = qkv_.BackwardInput(ctx, OwnColumns(dpacked_CO), dx_CH, &own);
  AsyncCall reducing_shared;
  Tensor dshared_CH;
  if (kv_ != nullptr) {
    dshared_CH = ctx.scratch->Allocate(dtype_, dx_CH.shape(), "attention gradient");
    reducing_shared = kv_->BackwardInput(ctx, SharedColumns(dpacked_CO), dshared_CH, &shared);
  }
  qkv_.BackwardWeight(ctx, own);
  if (kv_ != nullptr) kv_->BackwardWeight(ctx, shared);
  reducing.Wait();
  reducing_shared.Wait();
  if (kv_ != nullptr)
    ops::BiasDropoutAdd(ctx.stream, ops::Dropout(), dshared_CH, Tensor(), dx_CH, dx_CH);
}

void SelfAttention::ForwardInChunks(const LayerContext& ctx, const RotaryTables* rotary,
                                    const Tensor& x_TH, const Tensor& y_TH, Saved* saved) const {
  Arena::Scope scope(ctx.scratch);
  const Tensor all_x_TH = Gather(ctx, x_TH);
  saved->qkv.x_TI = x_TH;
  in_chunks_.Forward(
      ctx,
      [&](const LayerContext& at, const AttentionChunk& chunk, const Tensor& q_CGRD,
          const Tensor& k_CGD) { return MakeChunk(at, rotary, chunk, all_x_TH, q_CGRD, k_CGD); },
      Sinks(ctx), proj_, y_TH, &saved->chunks);
}

void SelfAttention::BackwardInChunks(const LayerContext& ctx, const RotaryTables* rotary,
                                     const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved) {
  Arena::Scope scope(ctx.scratch);
  const AttentionInChunks::Sinks sinks = {Sinks(ctx), SinkGradients()};
  const AttentionInChunks::OfAllTokens all =
      in_chunks_.BackwardOutput(ctx, dy_TH, sinks.sink_N, &proj_, saved->chunks);
  const Tensor all_x_TH = Gather(ctx, saved->qkv.x_TI), all_dx_TH = SummandOf(ctx, dx_TH);
  Tensor dqkv_CGS;  // that of the chunk at work
  const auto allocate = [&](const LayerContext& at, const AttentionChunk& chunk) {
    dqkv_CGS = AllocatePacked(at, chunk, "attention gradient");
    return AttentionInChunks::Gradients{Queries(dqkv_CGS), Keys(dqkv_CGS), Values(dqkv_CGS)};
  };
  const auto give_back = [&](const LayerContext& at, const AttentionChunk& chunk) {
    ProjectChunkBack(at, rotary, chunk, dqkv_CGS, all_x_TH, all_dx_TH);
  };
  in_chunks_.BackwardHeads(ctx, all, allocate, give_back, sinks, saved->chunks);
  if (ctx.sequence_parallel) Reduce(ctx, all_dx_TH, dx_TH);
}

void SelfAttention::AppendParameters(std::vector<Parameter*>* out) {
  qkv_.AppendParameters(out);
  if (kv_ != nullptr) kv_->AppendParameters(out);
  if (qk_norm_) {
    q_norm_.AppendParameters(out);
    k_norm_.AppendParameters(out);
  }
  if (sink_ == AttentionSink::kLearned) out->push_back(&softmax_offset_);
  proj_.AppendParameters(out);
}

}  // namespace megatron
