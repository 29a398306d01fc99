#include "megatron/layers/latent_attention.h"

#include "glog/logging.h"
#include "megatron/layers/attention_options.h"
#include "megatron/layers/kv_cache.h"
#include "megatron/layers/tensor_parallel.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/rope.h"
#include "megatron/ops/shared_key.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

ReplicatedLinearOptions DownLinear(const TransformerOptions& options, const std::string& name,
                                   int64_t output_size) {
  ReplicatedLinearOptions linear;
  linear.name = name;
  linear.input_size = options.hidden_size;
  linear.output_size = output_size;
  linear.init_std = options.init_std;
  linear.sequence_parallel = options.sequence_parallel;
  linear.float8 = options.float8;
  return linear;
}

// The projection to `width` numbers of each head. What reads latents gets all rows of them, and
// leaves the sum of their gradients to its caller.
LinearOptions HeadsLinear(const TransformerOptions& options, const std::string& name,
                          bool reads_latents, int64_t input_size, int64_t width) {
  LinearOptions linear;
  linear.name = name;
  linear.input_size = input_size;
  linear.output_shape = {options.num_attention_heads, width};
  linear.bias = false;
  linear.init_std = options.init_std;
  linear.float8 = options.float8;
  linear.sums_input_gradient = !reads_latents;
  return linear;
}

LinearOptions QueryLinear(const TransformerOptions& options, const std::string& name) {
  const int64_t rank = options.latent.q_rank;
  return HeadsLinear(options, name + (rank > 0 ? ".linear_q_up_proj" : ".linear_q_proj"),
                     /*reads_latents=*/rank > 0, rank > 0 ? rank : options.hidden_size,
                     options.kv_channels);
}

// Megatron names the norm of a latent after the projection that reads it.
std::unique_ptr<NormLayer> LatentNorm(const TransformerOptions& options, const std::string& name,
                                      int64_t size) {
  if (!options.qk_norm || size == 0) return nullptr;
  return std::make_unique<NormLayer>(NormOptions{options.norm, name + ".layer_norm_weight",
                                                 name + ".layer_norm_bias", size,
                                                 options.sequence_parallel});
}

Tensor Flat(const Tensor& x) { return x.View({x.dim(0), x.numel() / x.dim(0)}); }

// A chunk's rows of a tensor, which may be empty.
Tensor RowsOrNone(const AttentionChunk& chunk, const Tensor& x_T) {
  return x_T.empty() ? Tensor() : chunk.RowsOf(x_T);
}

// Heads as groups of one query head each.
Tensor AsGroups(const Tensor& x_TND) { return x_TND.SplitDim(1, 1); }

}  // namespace

LatentAttention::LatentAttention(const TransformerOptions& options, const std::string& name,
                                 int64_t layer, const ProcessGroup& tensor_group)
    : layer_(layer),
      heads_(options.num_attention_heads / tensor_group.size()),
      own_size_(options.kv_channels - options.latent.rotated_size),
      rotated_size_(options.latent.rotated_size),
      value_size_(options.value_size()),
      q_rank_(options.latent.q_rank),
      kv_rank_(options.latent.kv_rank),
      recompute_core_(options.recompute.core_attention),
      recompute_heads_(options.recompute.latent_heads),
      has_norms_(options.qk_norm),
      rotates_(options.Rotates(layer)),
      has_window_(options.HasWindow(layer)),
      caches_latents_(options.latent.caches_latents),
      dtype_(options.dtype),
      core_(SelfAttentionCore(options, layer, tensor_group)),
      in_chunks_({options.recompute.attention_chunk_tokens, heads_, /*heads_per_group=*/1,
                  options.kv_channels, value_size_, recompute_core_, dtype_},
                 core_),
      kv_down_(DownLinear(options, name + ".linear_kv_down_proj", kv_rank_ + rotated_size_)),
      q_norm_(LatentNorm(options, name + ".linear_q_up_proj", q_rank_)),
      kv_norm_(LatentNorm(options, name + ".linear_kv_up_proj", kv_rank_)),
      q_(QueryLinear(options, name), tensor_group),
      kv_(HeadsLinear(options, name + ".linear_kv_up_proj", /*reads_latents=*/true, kv_rank_,
                      own_size_ + value_size_),
          tensor_group),
      proj_(AttentionOutputLinear(options, name), tensor_group) {
  if (q_rank_ > 0) {
    q_down_ = std::make_unique<ReplicatedLinear>(
        DownLinear(options, name + ".linear_q_down_proj", q_rank_));
  }
  CHECK_EQ(options.num_query_groups, options.num_attention_heads) << name;
  CHECK_EQ(options.num_attention_heads % tensor_group.size(), 0) << name;
  CHECK(options.sink == AttentionSink::kNone && options.relative_positions.buckets == 0) << name;
  CHECK(!options.grid.is_grid()) << name;
  // FP8's scales are made of a whole tensor.
  CHECK(!in_chunks_.is_on() || (options.causal && !options.float8.enabled)) << name;
}

LayerContext LatentAttention::WithAllRows(const LayerContext& ctx) {
  LayerContext all = ctx;
  all.sequence_parallel = false;
  return all;
}

void LatentAttention::Rotate(const LayerContext& ctx, const RotaryTables* rotary, bool inverse,
                             const Tensor& position_T, const Tensor& x) const {
  if (rotary == nullptr || !rotates_) return;
  ops::Rope(ctx.stream, rotary->cos_SP(has_window_), rotary->sin_SP(has_window_), position_T,
            rotary->interleaved(), inverse, x);
}

void LatentAttention::MakeQueries(const LayerContext& ctx, const RotaryTables* rotary,
                                  const Tensor& position_T, const Tensor& x_TH,
                                  const Tensor& all_TL, const Tensor& q_TND,
                                  LinearSaved* saved) const {
  if (q_down_ != nullptr) {
    q_.Forward(WithAllRows(ctx), QueryLatent(all_TL), Flat(q_TND), saved);
  } else {
    q_.Forward(ctx, x_TH, Flat(q_TND), saved);
  }
  Rotate(ctx, rotary, /*inverse=*/false, position_T, RotatedPart(q_TND));
}

void LatentAttention::MakeKeys(const LayerContext& ctx, const Tensor& all_TL, const Tensor& k_TND,
                               const Tensor& kv_TNC, LinearSaved* saved) const {
  kv_.Forward(WithAllRows(ctx), KeyLatent(all_TL), Flat(kv_TNC), saved);
  ops::JoinSharedKey(ctx.stream, OwnKeys(kv_TNC), SharedKey(all_TL), k_TND);
}

void LatentAttention::MakeHeads(const LayerContext& ctx, Arena* arena, const RotaryTables* rotary,
                                const Tensor& x_TH, const Tensor& all_TL, Saved* saved) const {
  const int64_t tokens = ctx.batch->num_tokens(), key_size = own_size_ + rotated_size_;
  saved->q_TND = arena->Allocate(dtype_, {tokens, heads_, key_size}, "attention q");
  saved->k_TND = arena->Allocate(dtype_, {tokens, heads_, key_size}, "attention k");
  saved->kv_TNC =
      arena->Allocate(dtype_, {tokens, heads_, own_size_ + value_size_}, "attention kv");
  MakeQueries(ctx, rotary, ctx.batch->position_T, x_TH, all_TL, saved->q_TND, &saved->q);
  MakeKeys(ctx, all_TL, saved->k_TND, saved->kv_TNC, &saved->kv);
}

ops::AttentionInputs LatentAttention::Inputs(const LayerContext& ctx, const Saved& saved) const {
  const Tensor q_TGRD = AsGroups(saved.q_TND);
  if (ctx.cached == nullptr) return {q_TGRD, saved.k_TND, Values(saved.kv_TNC), Tensor(), Tensor()};
  const KvCache& cache = *ctx.cached->cache;
  return {q_TGRD, cache.Keys(layer_), cache.Values(layer_), Tensor(), Tensor()};
}

void LatentAttention::PutInCache(const LayerContext& ctx, const Saved& saved) const {
  Arena::Scope scope(ctx.scratch);
  const int64_t key_size = own_size_ + rotated_size_;
  const Tensor new_TNW = ctx.scratch->Allocate(
      dtype_, {saved.k_TND.dim(0), heads_, key_size + value_size_}, "new keys and values");
  ops::Copy(ctx.stream, saved.k_TND, new_TNW.Slice(2, 0, key_size));
  ops::Copy(ctx.stream, Values(saved.kv_TNC), new_TNW.Slice(2, key_size, key_size + value_size_));
  ctx.cached->cache->Put(ctx.stream, layer_, new_TNW, ctx.cached->place_T11);
}

void LatentAttention::AttendToLatents(const LayerContext& ctx, const RotaryTables* rotary,
                                      const Tensor& x_TH, const Tensor& all_TL,
                                      Saved* saved) const {
  const KvCache& cache = *ctx.cached->cache;
  const int64_t tokens = ctx.batch->num_tokens(), key_size = kv_rank_ + rotated_size_;
  const auto scratch = [&](const Shape& shape, const char* name) {
    return ctx.scratch->Allocate(dtype_, shape, name);
  };
  const Tensor new_T1L = scratch({tokens, 1, key_size}, "new latents");
  ops::Copy(ctx.stream, KeyLatentAndSharedKey(all_TL), new_T1L.Select(1, 0));
  cache.Put(ctx.stream, layer_, new_T1L, ctx.cached->place_T11);

  saved->q_TND = scratch({tokens, heads_, own_size_ + rotated_size_}, "attention q");
  MakeQueries(ctx, rotary, ctx.batch->position_T, x_TH, all_TL, saved->q_TND, &saved->q);
  const Tensor weight_NCL = kv_.weight_OI().View({heads_, own_size_ + value_size_, kv_rank_});
  // One group of all heads.
  const Tensor q_T1NL = scratch({tokens, 1, heads_, key_size}, "absorbed q");
  const Tensor q_TNL = q_T1NL.Select(1, 0);
  ops::Copy(ctx.stream, RotatedPart(saved->q_TND), q_TNL.Slice(2, kv_rank_, key_size));
  for (int64_t n = 0; n < heads_; ++n) {
    ops::LinearBackwardInput(ctx.stream, saved->q_TND.Slice(2, 0, own_size_).Select(1, n),
                             weight_NCL.Select(0, n).Slice(0, 0, own_size_),
                             q_TNL.Slice(2, 0, kv_rank_).Select(1, n));
  }
  const Tensor sums_T1NL = scratch({tokens, 1, heads_, kv_rank_}, "sums of latents");
  const Tensor keys_U1L = cache.Keys(layer_);
  core_.Forward(ctx, ctx.scratch,
                {q_T1NL, keys_U1L, keys_U1L.Slice(2, 0, kv_rank_), Tensor(), Tensor()}, sums_T1NL,
                &saved->core);
  saved->context_TGRE =
      ctx.saved->Allocate(dtype_, {tokens, heads_, 1, value_size_}, "attention output");
  for (int64_t n = 0; n < heads_; ++n) {
    ops::LinearForward(ctx.stream, sums_T1NL.Select(1, 0).Select(1, n),
                       weight_NCL.Select(0, n).Slice(0, own_size_, own_size_ + value_size_),
                       Tensor(), saved->context_TGRE.Select(2, 0).Select(1, n));
  }
}

void LatentAttention::Attend(const LayerContext& ctx, Arena* output, Arena* others,
                             Saved* saved) const {
  saved->context_TGRE =
      output->Allocate(dtype_, {saved->q_TND.dim(0), heads_, 1, value_size_}, "attention output");
  core_.Forward(ctx, others, Inputs(ctx, *saved), saved->context_TGRE, &saved->core);
}

void LatentAttention::Forward(const LayerContext& ctx, const RotaryTables* rotary,
                              const Tensor& x_TH, const Tensor& y_TH, Saved* saved) const {
  const TraceSpan span(ctx.stream, "attention");
  Arena::Scope scope(ctx.scratch);
  const Shape latents{x_TH.dim(0), width()};
  saved->x_TH = x_TH;
  const LayerContext of_qkv = ctx.Of(OffloadModule::kQkvLinear);
  Arena* const qkv_arena = of_qkv.saved;
  saved->latent_TL = qkv_arena->Allocate(dtype_, latents, "attention latents");
  if (q_down_ != nullptr)
    q_down_->Forward(of_qkv, x_TH, QueryLatent(saved->latent_TL), &saved->q_down);
  kv_down_.Forward(of_qkv, x_TH, KeyLatentAndSharedKey(saved->latent_TL), &saved->kv_down);
  saved->normed_TL = saved->latent_TL;
  if (has_norms_) {
    saved->normed_TL = qkv_arena->Allocate(dtype_, latents, "attention normalized latents");
    if (q_norm_ != nullptr) {
      q_norm_->Forward(ctx, QueryLatent(saved->latent_TL), QueryLatent(saved->normed_TL),
                       &saved->q_norm);
    }
    kv_norm_->Forward(ctx, KeyLatent(saved->latent_TL), KeyLatent(saved->normed_TL),
                      &saved->kv_norm);
    ops::Copy(ctx.stream, SharedKey(saved->latent_TL), SharedKey(saved->normed_TL));
  }
  Rotate(ctx, rotary, /*inverse=*/false, ctx.MyRows(ctx.batch->position_T),
         SharedKey(saved->normed_TL).SplitDim(1, rotated_size_));
  if (ctx.cached != nullptr && caches_latents_) {
    AttendToLatents(ctx, rotary, x_TH, Gather(ctx, saved->normed_TL), saved);
    proj_.Forward(ctx, Flat(saved->context_TGRE), y_TH, &saved->proj);
    return;
  }
  if (in_chunks_.is_on()) return ForwardInChunks(ctx, rotary, x_TH, y_TH, saved);
  const bool keeps_heads = ReadsHeads(ctx) && !recompute_heads_;
  Arena* const core_arena = ctx.SavedBy(OffloadModule::kCoreAttention);
  MakeHeads(of_qkv, keeps_heads ? core_arena : ctx.scratch, rotary, x_TH,
            Gather(ctx, saved->normed_TL), saved);
  if (ctx.cached != nullptr) PutInCache(ctx, *saved);
  const LayerContext of_proj = ctx.Of(OffloadModule::kAttentionProj);
  Attend(ctx, recompute_core_ ? ctx.scratch : of_proj.saved,
         recompute_core_ ? ctx.scratch : core_arena, saved);
  if (ctx.activations != nullptr) core_.MeasureScores(ctx, Inputs(ctx, *saved));
  proj_.Forward(of_proj, Flat(saved->context_TGRE), y_TH, &saved->proj);
}

void LatentAttention::Backward(const LayerContext& ctx, const RotaryTables* rotary,
                               const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved) {
  const TraceSpan span(ctx.stream, "attention");
  if (in_chunks_.is_on()) return BackwardInChunks(ctx, rotary, dy_TH, dx_TH, saved);
  Arena::Scope scope(ctx.scratch);
  const Tensor all_TL = Gather(ctx, saved->normed_TL);
  if (ReadsHeads(ctx) && recompute_heads_)
    MakeHeads(ctx, ctx.scratch, rotary, saved->x_TH, all_TL, saved);
  if (recompute_core_) {
    Attend(ctx, ctx.kept(), ctx.kept(), saved);
    saved->proj.x_TI = Flat(saved->context_TGRE);
  }
  const Tensor dcontext_TGRE =
      ctx.scratch->Allocate(dtype_, saved->context_TGRE.shape(), "attention gradient");
  proj_.BackwardInput(ctx, dy_TH, Flat(dcontext_TGRE), &saved->proj);

  const auto allocate = [&](Arena* arena, const Tensor& like) {
    return arena->Allocate(dtype_, like.shape(), "attention gradient");
  };
  const Tensor dq_TND = allocate(ctx.kept(), saved->q_TND);
  const Tensor dkv_TNC = allocate(ctx.kept(), saved->kv_TNC);
  const Tensor dk_TND = allocate(ctx.scratch, saved->k_TND);
  core_.Backward(ctx, Inputs(ctx, *saved), saved->context_TGRE, dcontext_TGRE,
                 {AsGroups(dq_TND), dk_TND, Values(dkv_TNC), Tensor(), Tensor()}, saved->core);

  saved->dlatent_TL = allocate(ctx.kept(), saved->latent_TL);
  const Tensor dnormed_TL =
      has_norms_ ? allocate(ctx.scratch, saved->latent_TL) : saved->dlatent_TL;
  const Tensor summand_TL = SummandOf(ctx, dnormed_TL);
  const AsyncCall reducing_x =
      HeadsBack(ctx, rotary, ctx.batch->position_T, {dq_TND, dk_TND, dkv_TNC}, saved->x_TH, all_TL,
                dx_TH, summand_TL, &saved->q, &saved->kv);
  const AsyncCall reducing = StartReduce(ctx, summand_TL, dnormed_TL);
  if (!ctx.defers()) AddHeadGradients(ctx, saved->q, saved->kv);
  reducing.Wait();
  reducing_x.Wait();
  LatentsBack(ctx, rotary, dnormed_TL, dx_TH, saved);
  if (!ctx.defers()) BackwardWeight(ctx, saved);
}

AsyncCall LatentAttention::HeadsBack(const LayerContext& ctx, const RotaryTables* rotary,
                                     const Tensor& position_T, const HeadGradients& gradients,
                                     const Tensor& x_TH, const Tensor& all_TL, const Tensor& dx_TH,
                                     const Tensor& summand_TL, LinearSaved* q,
                                     LinearSaved* kv) const {
  const LayerContext with_all_rows = WithAllRows(ctx);
  const auto& [dq_TND, dk_TND, dkv_TNC] = gradients;
  Rotate(ctx, rotary, /*inverse=*/true, position_T, RotatedPart(dq_TND));
  ops::SplitSharedKey(ctx.stream, dk_TND, OwnKeys(dkv_TNC), SharedKey(summand_TL));
  kv->x_TI = KeyLatent(all_TL);
  kv_.BackwardInput(with_all_rows, Flat(dkv_TNC), KeyLatent(summand_TL), kv).Wait();
  if (q_down_ == nullptr) {
    q->x_TI = x_TH;
    return q_.BackwardInput(ctx, Flat(dq_TND), dx_TH, q);
  }
  q->x_TI = QueryLatent(all_TL);
  return q_.BackwardInput(with_all_rows, Flat(dq_TND), QueryLatent(summand_TL), q);
}

void LatentAttention::AddHeadGradients(const LayerContext& ctx, const LinearSaved& q,
                                       const LinearSaved& kv) {
  const LayerContext with_all_rows = WithAllRows(ctx);
  kv_.BackwardWeight(with_all_rows, kv);
  q_.BackwardWeight(q_down_ != nullptr ? with_all_rows : ctx, q);
}

void LatentAttention::LatentsBack(const LayerContext& ctx, const RotaryTables* rotary,
                                  const Tensor& dnormed_TL, const Tensor& dx_TH, Saved* saved) {
  Rotate(ctx, rotary, /*inverse=*/true, ctx.MyRows(ctx.batch->position_T),
         SharedKey(dnormed_TL).SplitDim(1, rotated_size_));
  if (has_norms_) {
    if (q_norm_ != nullptr) {
      q_norm_->Backward(ctx, QueryLatent(dnormed_TL), Tensor(), QueryLatent(saved->dlatent_TL),
                        saved->q_norm);
    }
    kv_norm_->Backward(ctx, KeyLatent(dnormed_TL), Tensor(), KeyLatent(saved->dlatent_TL),
                       saved->kv_norm);
    ops::Copy(ctx.stream, SharedKey(dnormed_TL), SharedKey(saved->dlatent_TL));
  }
  if (q_down_ != nullptr)
    q_down_->BackwardInput(ctx, QueryLatent(saved->dlatent_TL), dx_TH, &saved->q_down);
  const Tensor more_TH = ctx.scratch->Allocate(dtype_, dx_TH.shape(), "attention gradient");
  kv_down_.BackwardInput(ctx, KeyLatentAndSharedKey(saved->dlatent_TL), more_TH, &saved->kv_down);
  ops::Add(ctx.stream, more_TH, dx_TH);
}

void LatentAttention::ForwardInChunks(const LayerContext& ctx, const RotaryTables* rotary,
                                      const Tensor& x_TH, const Tensor& y_TH, Saved* saved) const {
  Arena::Scope scope(ctx.scratch);
  const Tensor all_TL = Gather(ctx, saved->normed_TL);
  const Tensor all_x_TH = q_down_ != nullptr ? Tensor() : Gather(ctx, x_TH);
  const auto make = [&](const LayerContext& at, const AttentionChunk& chunk, const Tensor& q_CGRD,
                        const Tensor& k_CGD) {
    const Tensor kv_CNC = at.scratch->Allocate(
        dtype_, {chunk.rows(), heads_, own_size_ + value_size_}, "attention kv");
    const Tensor latents_CL = chunk.RowsOf(all_TL);
    LinearSaved forgotten;
    MakeQueries(at, rotary, chunk.RowsOf(at.batch->position_T), RowsOrNone(chunk, all_x_TH),
                latents_CL, q_CGRD.Select(2, 0), &forgotten);
    MakeKeys(at, latents_CL, k_CGD, kv_CNC, &forgotten);
    return Values(kv_CNC);
  };
  in_chunks_.Forward(ctx, make, /*sink_N=*/Tensor(), proj_, y_TH, &saved->chunks);
}

void LatentAttention::BackwardInChunks(const LayerContext& ctx, const RotaryTables* rotary,
                                       const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved) {
  Arena::Scope scope(ctx.scratch);
  const AttentionInChunks::OfAllTokens all =
      in_chunks_.BackwardOutput(ctx, dy_TH, /*sink_N=*/Tensor(), &proj_, saved->chunks);
  const bool reads_x = q_down_ == nullptr;
  const Tensor all_TL = Gather(ctx, saved->normed_TL);
  const Tensor all_x_TH = reads_x ? Gather(ctx, saved->x_TH) : Tensor();
  const Tensor all_dx_TH = reads_x ? SummandOf(ctx, dx_TH) : Tensor();
  saved->dlatent_TL = ctx.kept()->Allocate(dtype_, saved->latent_TL.shape(), "attention gradient");
  const Tensor dnormed_TL =
      has_norms_ ? ctx.scratch->Allocate(dtype_, saved->latent_TL.shape(), "attention gradient")
                 : saved->dlatent_TL;
  const Tensor summand_TL = SummandOf(ctx, dnormed_TL);
  const int64_t key_size = own_size_ + rotated_size_;
  HeadGradients d;  // those of the chunk at work
  const auto allocate = [&](const LayerContext& at, const AttentionChunk& chunk) {
    const auto heads = [&](int64_t size) {
      return at.scratch->Allocate(dtype_, {chunk.rows(), heads_, size}, "attention gradient");
    };
    d = {heads(key_size), heads(key_size), heads(own_size_ + value_size_)};
    return AttentionInChunks::Gradients{AsGroups(d.dq_TND), d.dk_TND, Values(d.dkv_TNC)};
  };
  const auto give_back = [&](const LayerContext& at, const AttentionChunk& chunk) {
    Arena::Scope chunk_scope(at.scratch);
    LinearSaved q, kv;
    const AsyncCall reducing = HeadsBack(
        at, rotary, chunk.RowsOf(at.batch->position_T), d, RowsOrNone(chunk, all_x_TH),
        chunk.RowsOf(all_TL), RowsOrNone(chunk, all_dx_TH), chunk.RowsOf(summand_TL), &q, &kv);
    AddHeadGradients(at, q, kv);
    reducing.Wait();
  };
  in_chunks_.BackwardHeads(ctx, all, allocate, give_back, /*sinks=*/{}, saved->chunks);
  Reduce(ctx, summand_TL, dnormed_TL);
  if (reads_x && ctx.sequence_parallel) Reduce(ctx, all_dx_TH, dx_TH);
  LatentsBack(ctx, rotary, dnormed_TL, dx_TH, saved);
  if (!ctx.defers()) BackwardWeight(ctx, saved);
}

void LatentAttention::BackwardWeight(const LayerContext& ctx, Saved* saved) {
  Arena::Scope scope(ctx.scratch);
  if (!in_chunks_.is_on()) {
    proj_.BackwardWeight(ctx, saved->proj);
    if (ctx.defers()) {
      const Tensor all_TL = Gather(ctx, saved->normed_TL);
      saved->kv.x_TI = KeyLatent(all_TL);
      if (q_down_ != nullptr) saved->q.x_TI = QueryLatent(all_TL);
      AddHeadGradients(ctx, saved->q, saved->kv);
    }
  }
  if (q_down_ != nullptr) {
    q_down_->BackwardWeight(ctx, QueryLatent(saved->dlatent_TL), saved->x_TH, saved->q_down);
  }
  kv_down_.BackwardWeight(ctx, KeyLatentAndSharedKey(saved->dlatent_TL), saved->x_TH,
                          saved->kv_down);
}

void LatentAttention::AppendParameters(std::vector<Parameter*>* out) {
  if (q_down_ != nullptr) q_down_->AppendParameters(out);
  if (q_norm_ != nullptr) q_norm_->AppendParameters(out);
  q_.AppendParameters(out);
  kv_down_.AppendParameters(out);
  if (kv_norm_ != nullptr) kv_norm_->AppendParameters(out);
  kv_.AppendParameters(out);
  proj_.AppendParameters(out);
}

}  // namespace megatron
