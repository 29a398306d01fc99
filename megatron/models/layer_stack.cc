#include "megatron/models/layer_stack.h"

#include <algorithm>

#include "glog/logging.h"
#include "megatron/layers/activation_meter.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/trace/trace.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

LayerStack::LayerStack(const LayerStackOptions& options, const ProcessGroup& tensor_group,
                       const ExpertGroups& expert_groups)
    : first_layer_(options.first_layer),
      layers_of_model_(options.transformer.num_layers),
      offload_modules_(options.offload_modules) {
  const int64_t count = options.num_layers;
  for (int64_t i = options.first_layer; i < options.first_layer + count; ++i) {
    TransformerOptions of_layer = options.transformer;
    of_layer.float8 = Float8OfLayer(of_layer.float8, i, of_layer.num_layers);
    layers_.push_back(std::make_unique<TransformerLayer>(of_layer, i, tensor_group, expert_groups));
  }
  const LayerRecompute& recompute = options.recompute;
  for (int64_t begin = 0; begin < count;) {
    const bool again = recompute.method == LayerRecompute::kUniform ||
                       (recompute.method == LayerRecompute::kBlock && begin < recompute.num_layers);
    const int64_t length = recompute.method == LayerRecompute::kUniform ? recompute.num_layers : 1;
    Segment segment;
    segment.begin = begin;
    segment.end = std::min(begin + length, count);
    segment.recompute = again;
    segment.offloaded = begin < options.num_offloaded_layers;
    segments_.push_back(segment);
    begin = segments_.back().end;
  }
}

void LayerStack::AppendParameters(std::vector<Parameter*>* out) {
  first_block_ = NextBlock(*out);
  parameters_.clear();
  for (const auto& layer : layers_) {
    std::vector<Parameter*> block;
    layer->AppendParameters(&block);
    AppendBlock(block, out);
    parameters_.emplace_back(block.begin(), block.end());
  }
  for (Segment& segment : segments_) {
    segment.next = segment.end == num_layers() ? WeightBlocks::kNone : BlockOf(segment.end);
  }
}

int64_t LayerStack::NumFrozen() const {
  const auto first = std::find_if(parameters_.begin(), parameters_.end(),
                                  [](const auto& of_layer) { return AnyIsTrained(of_layer); });
  return first - parameters_.begin();
}

LayerStack::Segment LayerStack::Behind(int64_t frozen, Segment segment) {
  segment.begin = std::max(segment.begin, frozen);
  return segment;
}

std::vector<MoeLayer*> LayerStack::moe_layers() const {
  std::vector<MoeLayer*> moe;
  for (const auto& layer : layers_) {
    if (layer->moe() != nullptr) moe.push_back(layer->moe());
  }
  return moe;
}

bool LayerStack::DropsTokens(const LayerContext& ctx, int64_t i) const {
  const int64_t layer = first_layer_ + i;
  return ctx.kept_tokens > 0 && layer > 0 && layer + 1 < layers_of_model_;
}

bool LayerStack::DropsTokens(const LayerContext& ctx) const {
  for (int64_t i = 0; i < num_layers(); ++i) {
    if (DropsTokens(ctx, i)) return true;
  }
  return false;
}

void LayerStack::ForwardLayer(const LayerContext& ctx, const RotaryTables* rotary, int64_t i,
                              const Tensor& x_TH, const Tensor& y_TH,
                              TransformerLayer::Saved* saved, KeptTokens* kept) const {
  if (!DropsTokens(ctx, i)) return layers_[i]->Forward(ctx, rotary, x_TH, y_TH, saved);
  Arena::Scope scope(ctx.scratch);
  ChooseKept(ctx, first_layer_ + i, kept);
  const Shape shape = {kept->Context(ctx).rows(), x_TH.dim(1)};
  const Tensor x_KH = ctx.saved->Allocate(x_TH.dtype(), shape, "layer input of kept tokens");
  const Tensor y_KH = ctx.scratch->Allocate(y_TH.dtype(), shape, "layer output of kept tokens");
  TakeKept(ctx, *kept, x_TH, x_KH);
  layers_[i]->Forward(kept->Context(ctx), rotary, x_KH, y_KH, saved);
  PutKept(ctx, *kept, y_KH, x_TH, y_TH);
}

void LayerStack::BackwardLayer(const LayerContext& ctx, const RotaryTables* rotary, int64_t i,
                               const Tensor& dy_TH, const Tensor& dx_TH, Saved* saved) {
  if (!DropsTokens(ctx, i)) {
    return layers_[i]->Backward(
        ctx, rotary, dy_TH, dx_TH, &saved->layers[i],
        {BiasGradientBelow(ctx, i), !BiasGradientBelow(ctx, i + 1).empty()});
  }
  Arena::Scope scope(ctx.scratch);
  const KeptTokens& kept = saved->kept[i];
  const Shape shape = {kept.Context(ctx).rows(), dy_TH.dim(1)};
  const Tensor dy_KH = ctx.scratch->Allocate(dy_TH.dtype(), shape, "gradient of kept tokens");
  const Tensor dx_KH = ctx.scratch->Allocate(dx_TH.dtype(), shape, "gradient of kept tokens");
  TakeKept(ctx, kept, dy_TH, dy_KH);
  layers_[i]->Backward(kept.Context(ctx), rotary, dy_KH, dx_KH, &saved->layers[i]);
  PutKept(ctx, kept, dx_KH, dy_TH, dx_TH);
}

// The layer above reads a bias of the layer below, whose weights it may not have otherwise. A layer
// that drops tokens has the sums of kept tokens alone.
Tensor LayerStack::AllocateBranch(const LayerContext& ctx, const Tensor& like_TH) const {
  const bool has_weights = ctx.blocks == nullptr || ctx.blocks->keeps_weights();
  if (layers_[0]->post_norm() || !has_weights || DropsTokens(ctx)) return Tensor();
  return AllocateHidden(ctx.scratch, like_TH, "branch");
}

void LayerStack::ForwardSegment(const LayerContext& ctx, const RotaryTables* rotary,
                                const Segment& segment, bool ends, const Tensor& branch_TH,
                                const Tensor& y_TH, TransformerLayer::LastSum* sum,
                                Saved* saved) const {
  for (int64_t i = segment.begin; i < segment.end; ++i) {
    const bool last = i + 1 == segment.end;
    const Tensor in_TH = saved->layer_input[i];
    const Tensor out_TH = last ? y_TH : AllocateHidden(ctx.saved, y_TH, "layer output");
    const WeightsInUse weights(ctx.blocks, BlockOf(i), last ? segment.next : BlockOf(i + 1));
    if (branch_TH.empty()) {
      ForwardLayer(ctx, rotary, i, in_TH, out_TH, &saved->layers[i],
                   DropsTokens(ctx, i) ? &saved->kept[i] : nullptr);
    } else {
      *sum = layers_[i]->ForwardBranches(ctx, rotary, *sum, in_TH, branch_TH, &saved->layers[i]);
    }
    // The layer has written its input, if that is the last sum of the layer below.
    if (ctx.activations != nullptr && i > 0)
      ctx.activations->AddOutput(ctx.stream, layers_[i - 1]->number(), in_TH);
    if (!last) saved->layer_input[i + 1] = out_TH;
  }
  if (branch_TH.empty() || !ends) return;
  TransformerLayer::AddLast(ctx, *sum, y_TH);
  *sum = {};
}

void LayerStack::SetWindow(Arena* window, LayerContext* ctx) const {
  // What layers keep on the host themselves does not leave and come back.
  window->set_host(ctx->saved->host());
  if (offload_modules_.empty()) {
    ctx->saved = window;
  } else {
    ctx->offloaded = window;
    ctx->offload_modules = offload_modules_;
  }
}

bool LayerStack::OffloadsInput(const Segment& segment) const {
  return offload_modules_.empty() || offload_modules_.Has(layers_[segment.begin]->input_module());
}

void LayerStack::Forward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& x_TH,
                         const Tensor& y_TH, Saved* saved) const {
  if (layers_.empty()) return ops::Copy(ctx.stream, x_TH, y_TH);
  saved->layer_input.resize(layers_.size());
  saved->layers.resize(layers_.size());
  saved->kept.resize(DropsTokens(ctx) ? layers_.size() : 0);
  const auto offload = [&](size_t segment) {
    return segment < segments_.size() && segments_[segment].offloaded ? saved->offload : nullptr;
  };
  const int64_t frozen = NumFrozen(*saved);
  Tensor from_TH = x_TH;
  if (frozen > 0) {
    if (frozen < num_layers()) from_TH = AllocateHidden(ctx.saved, y_TH, "layer output");
    ForwardFirst(ctx, rotary, frozen, x_TH, frozen < num_layers() ? from_TH : y_TH, saved->offload);
  }
  size_t first = 0;
  while (first < segments_.size() && segments_[first].end <= frozen) ++first;
  Arena::Scope branch_scope(ctx.scratch);
  const Tensor branch_TH = AllocateBranch(ctx, y_TH);
  TransformerLayer::LastSum sum;
  Arena* window = offload(first) ? offload(first)->Begin(first) : nullptr;  // the segment's
  for (size_t i = first; i < segments_.size(); ++i) {
    const Segment segment = Behind(frozen, segments_[i]);
    const bool leaves = segment.end == num_layers();
    Arena* const next_window = offload(i + 1) ? offload(i + 1)->Begin(i + 1) : nullptr;
    const bool to_window = next_window != nullptr && OffloadsInput(segments_[i + 1]);
    const Tensor to_TH =
        leaves ? y_TH : AllocateHidden(to_window ? next_window : ctx.saved, y_TH, "layer output");
    // What a sum reads of a recomputed segment goes with it.
    const bool ends = leaves || segment.recompute;
    saved->layer_input[segment.begin] = from_TH;
    if (offload(i)) offload(i)->Acquire(i);
    // Otherwise the next segment writes its input.
    if (to_window && (ends || branch_TH.empty())) offload(i + 1)->Acquire(i + 1);
    LayerContext of_segment = ctx;
    if (segment.recompute) {
      of_segment.saved = ctx.recompute;
    } else if (window != nullptr) {
      SetWindow(window, &of_segment);
    }
    Arena::Scope scope(ctx.recompute);
    ForwardSegment(of_segment, rotary, segment, ends, branch_TH, to_TH, &sum, saved);
    if (offload(i)) offload(i)->Leave(i);
    from_TH = to_TH;
    window = next_window;
  }
  if (ctx.activations != nullptr)
    ctx.activations->AddOutput(ctx.stream, layers_.back()->number(), y_TH);
}

void LayerStack::ForwardOnly(const LayerContext& ctx, const RotaryTables* rotary,
                             const Tensor& x_TH, const Tensor& y_TH,
                             ActivationStore::Slot* offload) const {
  if (layers_.empty()) return ops::Copy(ctx.stream, x_TH, y_TH);
  ForwardFirst(ctx, rotary, num_layers(), x_TH, y_TH, offload);
}

void LayerStack::ForwardFirst(const LayerContext& ctx, const RotaryTables* rotary, int64_t count,
                              const Tensor& x_TH, const Tensor& y_TH,
                              ActivationStore::Slot* offload) const {
  Arena::Scope scope(ctx.saved);
  const Tensor between_TH = AllocateHidden(ctx.saved, y_TH, "layer output");
  // The outputs alternate between two places, so that the last one is y.
  Tensor from_TH = x_TH;
  for (size_t s = 0; s < segments_.size() && segments_[s].begin < count; ++s) {
    const Segment& segment = segments_[s];
    // The windows of recomputed layers have no room for more than their inputs.
    const bool in_window = offload != nullptr && segment.offloaded && !segment.recompute;
    for (int64_t i = segment.begin; i < std::min(segment.end, count); ++i) {
      LayerContext of_layer = ctx;
      of_layer.has_backward = false;
      if (in_window) {
        SetWindow(offload->Begin(s), &of_layer);
        offload->Acquire(s);
      }
      Arena::Scope layer_scope(of_layer.saved);
      TransformerLayer::Saved discarded;
      KeptTokens discarded_tokens;
      const Tensor to_TH = (count - i) % 2 == 1 ? y_TH : between_TH;
      const WeightsInUse weights(ctx.blocks, BlockOf(i),
                                 i + 1 == num_layers() ? WeightBlocks::kNone : BlockOf(i + 1));
      ForwardLayer(of_layer, rotary, i, from_TH, to_TH, &discarded, &discarded_tokens);
      // The next layer's segment, or the end of the stack, adds the last output.
      if (ctx.activations != nullptr && i + 1 < count)
        ctx.activations->AddOutput(ctx.stream, layers_[i]->number(), to_TH);
      from_TH = to_TH;
    }
  }
}

Tensor LayerStack::BiasGradientBelow(const LayerContext& ctx, int64_t i) const {
  const bool is_there =
      (ctx.blocks == nullptr || ctx.blocks->keeps_gradients()) && !DropsTokens(ctx);
  return i > 0 && i < num_layers() && is_there ? layers_[i - 1]->OutputBiasGradient(ctx) : Tensor();
}

void LayerStack::BackwardSegment(const LayerContext& ctx, const RotaryTables* rotary,
                                 const Segment& segment, bool ends, const Tensor& dy_TH,
                                 const Tensor& dx_TH, Saved* saved) {
  Arena::Scope scope(ctx.scratch);
  Arena::Scope recompute_scope(ctx.recompute);
  // The recomputation ends with the layer that the backward begins with: it is held over both.
  const WeightsInUse last_layer(ctx.blocks, BlockOf(segment.end - 1));
  if (segment.recompute) {
    Arena::Scope output_scope(ctx.scratch);
    LayerContext recomputing = ctx;
    recomputing.saved = ctx.defers() ? ctx.deferred : ctx.recompute;
    recomputing.activations = nullptr;
    // The output itself is not needed any more, but has to be written somewhere.
    Segment alone = segment;
    alone.next = WeightBlocks::kNone;
    const TraceSpan span(ctx.stream, "recompute");
    TransformerLayer::LastSum sum;
    const Tensor out_TH = AllocateHidden(ctx.scratch, dy_TH, "recomputed output");
    ForwardSegment(recomputing, rotary, alone, /*ends=*/true, AllocateBranch(ctx, dy_TH), out_TH,
                   &sum, saved);
  }
  Tensor from_TH = dy_TH;
  for (int64_t i = segment.end - 1; i >= segment.begin; --i) {
    const Tensor to_TH =
        i == segment.begin ? dx_TH : AllocateHidden(ctx.scratch, dx_TH, "layer gradient");
    const bool is_last = i == segment.begin && ends;
    const WeightsInUse weights(ctx.blocks, BlockOf(i),
                               is_last ? WeightBlocks::kNone : BlockOf(i - 1));
    const GradientsInUse gradients(ctx.blocks, BlockOf(i), /*last=*/!ctx.defers());
    BackwardLayer(ctx, rotary, i, from_TH, to_TH, saved);
    from_TH = to_TH;
  }
}

void LayerStack::Backward(const LayerContext& ctx, const RotaryTables* rotary, const Tensor& dy_TH,
                          const Tensor& dx_TH, Saved* saved) {
  if (layers_.empty()) return ops::Copy(ctx.stream, dy_TH, dx_TH);
  const int64_t frozen = NumFrozen(*saved);
  if (frozen == num_layers()) return;
  Arena::Scope scope(ctx.scratch);
  const Tensor between_TH = AllocateHidden(ctx.scratch, dx_TH, "layer gradient");
  // The gradients alternate between two places, so that the last one is dx.
  Tensor from_TH = dy_TH;
  CHECK(saved->offload == nullptr || !ctx.defers());
  if (saved->offload != nullptr) saved->offload->StartBackward();
  for (size_t i = segments_.size(); i-- > 0 && segments_[i].end > frozen;) {
    const Segment segment = Behind(frozen, segments_[i]);
    const Tensor to_TH = i % 2 == 0 ? dx_TH : between_TH;
    ActivationStore::Slot* const offload = segments_[i].offloaded ? saved->offload : nullptr;
    if (offload != nullptr) offload->Acquire(i);
    BackwardSegment(ctx, rotary, segment, /*ends=*/segment.begin == frozen, from_TH, to_TH, saved);
    if (offload != nullptr) offload->Release(i);
    from_TH = to_TH;
  }
}

void LayerStack::BackwardWeight(const LayerContext& ctx, Saved* saved) {
  for (int64_t i = num_layers() - 1; i >= NumFrozen(*saved); --i) {
    const GradientsInUse gradients(ctx.blocks, BlockOf(i));
    layers_[i]->BackwardWeight(DropsTokens(ctx, i) ? saved->kept[i].Context(ctx) : ctx,
                               &saved->layers[i]);
  }
}

}  // namespace megatron
