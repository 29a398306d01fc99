#include "megatron/models/multi_token_prediction.h"

#include <string>
#include <utility>

#include "glog/logging.h"
#include "megatron/layers/dropout_site.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

// Makes what is said of each layer say of `count` more what it says of the last.
template <typename T>
void Extend(int64_t count, std::vector<T>* of_layers) {
  if (!of_layers->empty()) of_layers->resize(of_layers->size() + count, of_layers->back());
}

ModelOptions OptionsOfDepth(const ModelOptions& options, const std::string& name) {
  ModelOptions of_depth = options;
  TransformerOptions& transformer = of_depth.transformer;
  transformer.name = name;
  transformer.layer_name = name + ".transformer_layer";
  Extend(options.mtp_num_layers, &transformer.moe.layers);
  Extend(options.mtp_num_layers, &transformer.window_layers);
  Extend(options.mtp_num_layers, &transformer.rotary_layers);
  return of_depth;
}

std::unique_ptr<NormLayer> MakeNorm(const TransformerOptions& options, const std::string& name) {
  return std::make_unique<NormLayer>(NormOptions{options.norm, name + ".weight", name + ".bias",
                                                 options.hidden_size, options.sequence_parallel});
}

}  // namespace

MultiTokenPrediction::MultiTokenPrediction(const ModelOptions& options,
                                           const ProcessGroup& tensor_group,
                                           const ExpertGroups& expert_groups,
                                           VocabParallelEmbedding* embedding)
    : dtype_(options.transformer.dtype),
      hidden_size_(options.transformer.hidden_size),
      dropout_(options.transformer.hidden_dropout),
      embedding_scale_(options.embedding_scale * options.embedding_output_scale),
      embedding_(embedding),
      ends_embedding_(!embedding->weight().owner) {
  const TransformerOptions& transformer = options.transformer;
  CHECK(!transformer.post_norm && !options.learned_positions && !transformer.grid.is_grid());
  CHECK(!options.output_bias && !options.masked_lm_transform);
  CHECK(!transformer.is_hybrid());
  norm_.norm = MakeNorm(transformer, transformer.name + ".final_layernorm");
  for (int64_t d = 0; d < options.mtp_num_layers; ++d) {
    const std::string name = "mtp.layers." + std::to_string(d);
    const ModelOptions of_depth = OptionsOfDepth(options, name);
    Depth depth;
    depth.embedding_norm = MakeNorm(transformer, name + ".enorm");
    depth.hidden_norm = MakeNorm(transformer, name + ".hnorm");
    depth.projection = std::make_unique<ReplicatedLinear>(ReplicatedLinearOptions{
        name + ".eh_proj", 2 * hidden_size_, hidden_size_, transformer.init_std,
        transformer.sequence_parallel, transformer.float8});
    depth.layer = std::make_unique<LayerStack>(
        LayerStackOptions{of_depth.transformer, options.layer_recompute, transformer.num_layers + d,
                          /*num_layers=*/1},
        tensor_group, expert_groups);
    depth.last_norm.norm = MakeNorm(transformer, name + ".final_layernorm");
    depths_.push_back(std::move(depth));
  }
}

LayerContext MultiTokenPrediction::ContextOfDepth(const LayerContext& ctx,
                                                  const MicroBatch& batch) {
  LayerContext of_depth = ctx;
  of_depth.batch = &batch;
  of_depth.deferred = nullptr;
  of_depth.activations = nullptr;
  of_depth.largest_scores_LN = Tensor();
  of_depth.kept_tokens = 0;
  return of_depth;
}

void MultiTokenPrediction::Normalize(const LayerContext& ctx, const NormBlock& norm,
                                     const Tensor& x_TH, const Tensor& y_TH,
                                     NormLayer::Saved* saved) const {
  const WeightsInUse weights(ctx.blocks, norm.block);
  norm.norm->Forward(ctx, x_TH, y_TH, saved);
}

void MultiTokenPrediction::NormalizeBack(const LayerContext& ctx, const NormBlock& norm,
                                         const Tensor& dy_TH, const Tensor& dx_TH,
                                         const NormLayer::Saved& saved) const {
  const WeightsInUse weights(ctx.blocks, norm.block);
  const GradientsInUse gradients(ctx.blocks, norm.block);
  norm.norm->Backward(ctx, dy_TH, Tensor(), dx_TH, saved);
}

void MultiTokenPrediction::Forward(const LayerContext& ctx, const RotaryTables* rotary,
                                   const Tensor& x_TH, absl::Span<const Tensor> hidden,
                                   Saved* saved) const {
  const TraceSpan span(ctx.stream, "multi-token prediction");
  Normalize(ctx, norm_, x_TH, hidden[0], &saved->norm);
  if (hidden.size() == 1) return;
  CHECK_EQ(hidden.size(), depths_.size() + 1);
  CHECK_EQ(ctx.batch->mtp.depths(), static_cast<int64_t>(depths_.size()));
  saved->depths.resize(depths_.size());
  for (size_t d = 0; d < depths_.size(); ++d) {
    const Depth& depth = depths_[d];
    OfDepth& kept = saved->depths[d];
    const MicroBatch batch = ctx.batch->AtDepth(static_cast<int64_t>(d));
    const LayerContext at = ContextOfDepth(ctx, batch);
    const Tensor embedding_TH = Allocate(at.saved, at, "embedding");
    {
      const WeightsInUse words(at.blocks, embedding_->weight().block, depth.own_block);
      embedding_->Forward(at, batch.tokens_T, embedding_TH);
    }
    if (embedding_scale_ != 1) ops::Scale(at.stream, embedding_scale_, embedding_TH);
    const ops::Dropout dropout =
        DropoutAt(at, dropout_, static_cast<int64_t>(d), DropoutSite::kMtpEmbedding);
    if (dropout.probability > 0)
      ops::BiasDropoutAdd(at.stream, dropout, embedding_TH, Tensor(), Tensor(), embedding_TH);
    kept.joined_TI = at.saved->Allocate(dtype_, {at.rows(), 2 * hidden_size_}, "norm output");
    const Tensor input_TH = Allocate(at.saved, at, "layer input");
    {
      const WeightsInUse own(at.blocks, depth.own_block, depth.layer->first_block());
      depth.embedding_norm->Forward(at, embedding_TH, EmbeddingPart(kept.joined_TI),
                                    &kept.embedding_norm);
      depth.hidden_norm->Forward(at, hidden[d], HiddenPart(kept.joined_TI), &kept.hidden_norm);
      depth.projection->Forward(at, kept.joined_TI, input_TH, &kept.projection);
    }
    const Tensor y_TH = Allocate(at.saved, at, "layer output");
    if (at.training) {
      depth.layer->Forward(at, rotary, input_TH, y_TH, &kept.layer);
    } else {
      depth.layer->ForwardOnly(at, rotary, input_TH, y_TH);
    }
    Normalize(at, depth.last_norm, y_TH, hidden[d + 1], &kept.last_norm);
  }
}

void MultiTokenPrediction::Backward(const LayerContext& ctx, const RotaryTables* rotary,
                                    absl::Span<const Tensor> dhidden, const Tensor& dx_TH,
                                    Saved* saved) {
  const TraceSpan span(ctx.stream, "multi-token prediction");
  CHECK_EQ(dhidden.size(), depths_.size() + 1);
  Arena::Scope whole_scope(ctx.scratch);
  const Tensor sum_TH = Allocate(ctx.scratch, ctx, "norm gradient");
  Tensor dnormed_TH = dhidden.back();  // the whole gradient of h_d+1, and at the end of h_0
  for (size_t d = depths_.size(); d-- > 0;) {
    Depth& depth = depths_[d];
    OfDepth& kept = saved->depths[d];
    const MicroBatch batch = ctx.batch->AtDepth(static_cast<int64_t>(d));
    const LayerContext at = ContextOfDepth(ctx, batch);
    Arena::Scope scope(at.scratch);
    const Tensor dy_TH = Allocate(at.scratch, at, "layer gradient");
    const Tensor dinput_TH = Allocate(at.scratch, at, "layer gradient");
    NormalizeBack(at, depth.last_norm, dnormed_TH, dy_TH, kept.last_norm);
    depth.layer->Backward(at, rotary, dy_TH, dinput_TH, &kept.layer);
    const Tensor djoined_TI =
        at.scratch->Allocate(dtype_, {at.rows(), 2 * hidden_size_}, "norm gradient");
    const Tensor dembedding_TH = Allocate(at.scratch, at, "embedding gradient");
    {
      const WeightsInUse own(at.blocks, depth.own_block);
      const GradientsInUse gradients(at.blocks, depth.own_block);
      depth.projection->BackwardInput(at, dinput_TH, djoined_TI, &kept.projection);
      depth.projection->BackwardWeight(at, dinput_TH, kept.joined_TI, kept.projection);
      depth.embedding_norm->Backward(at, EmbeddingPart(djoined_TI), Tensor(), dembedding_TH,
                                     kept.embedding_norm);
      depth.hidden_norm->Backward(at, HiddenPart(djoined_TI), dhidden[d], sum_TH, kept.hidden_norm);
    }
    dnormed_TH = sum_TH;
    const ops::Dropout dropout =
        DropoutAt(at, dropout_, static_cast<int64_t>(d), DropoutSite::kMtpEmbedding);
    if (dropout.probability > 0)
      ops::DropoutBackward(at.stream, dropout, dembedding_TH, dembedding_TH, Tensor());
    if (embedding_scale_ != 1) ops::Scale(at.stream, embedding_scale_, dembedding_TH);
    const GradientsInUse words(at.blocks, embedding_->weight().block,
                               /*last=*/ends_embedding_ && d == 0);
    embedding_->Backward(at, batch.tokens_T, dembedding_TH);
  }
  NormalizeBack(ctx, norm_, dnormed_TH, dx_TH, saved->norm);
}

void MultiTokenPrediction::AppendNorm(NormBlock* norm, std::vector<Parameter*>* out) {
  std::vector<Parameter*> parameters;
  norm->norm->AppendParameters(&parameters);
  norm->block = NextBlock(*out);
  AppendBlock(parameters, out);
}

void MultiTokenPrediction::AppendParameters(std::vector<Parameter*>* out) {
  AppendNorm(&norm_, out);
  for (Depth& depth : depths_) {
    std::vector<Parameter*> own;
    depth.embedding_norm->AppendParameters(&own);
    depth.hidden_norm->AppendParameters(&own);
    depth.projection->AppendParameters(&own);
    depth.own_block = NextBlock(*out);
    AppendBlock(own, out);
    depth.layer->AppendParameters(out);
    AppendNorm(&depth.last_norm, out);
  }
}

std::vector<MoeLayer*> MultiTokenPrediction::moe_layers() const {
  std::vector<MoeLayer*> layers;
  for (const Depth& depth : depths_) {
    for (MoeLayer* layer : depth.layer->moe_layers()) layers.push_back(layer);
  }
  return layers;
}

}  // namespace megatron
