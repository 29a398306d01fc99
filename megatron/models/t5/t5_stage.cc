#include "megatron/models/t5/t5_stage.h"

#include <algorithm>
#include <string>

#include "glog/logging.h"
#include "megatron/layers/dropout_site.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {
namespace {

MicroBatch EncoderView(const MicroBatch& batch) {
  MicroBatch encoder;
  encoder.tokens_T = batch.encoder.tokens_T;
  encoder.position_T = batch.encoder.position_T;
  encoder.sample_T = batch.encoder.sample_T;
  encoder.sample_position_T = batch.encoder.sample_position_T;
  encoder.cu_seqlens = batch.encoder.cu_seqlens;
  encoder.max_seqlen = batch.encoder.max_seqlen;
  encoder.context = batch.encoder.context;
  return encoder;
}

// Sets out = x, if there are both.
void Pass(const Stream& stream, const Tensor& x, const Tensor& out) {
  if (x && out) ops::Copy(stream, x, out);
}

// Sets out to the gradient from behind, or to zeros if there is nothing behind.
void StartGradient(const Stream& stream, const Tensor& from_behind, const Tensor& out) {
  if (!out) return;
  if (from_behind) return ops::Copy(stream, from_behind, out);
  ops::Zero(stream, out);
}

}  // namespace

T5Stage::T5Stage(const ModelOptions& options, const Measures& measures, const StageSetup& setup)
    : ModelStage(options, measures, setup) {
  const TransformerOptions& transformer = options.transformer;
  CHECK(options.kind == ModelKind::kT5);
  CHECK_EQ(transformer.name, "decoder");
  CHECK(transformer.moe.num_experts == 0 && !transformer.rotary && !transformer.post_norm);
  CHECK_EQ(transformer.num_query_groups, transformer.num_attention_heads);
  for (int c = 0; c < setup.placement.chunks; ++c) {
    chunks_.push_back(MakeChunk(c));
    if (!chunks_.back().ends_encoder()) continue;
    encoder_norm_ = std::make_unique<NormLayer>(
        NormOptions{transformer.norm, "encoder.final_layernorm.weight",
                    "encoder.final_layernorm.bias", transformer.hidden_size,
                    /*partial_over_tensor=*/transformer.sequence_parallel});
  }
  if (embedding() != nullptr && relative()) MakePositions(setup.device, setup.ledger);
}

T5Stage::Chunk T5Stage::MakeChunk(int index) const {
  const Part part = PartOf(index);
  const int64_t border = options().num_encoder_layers;
  Chunk chunk;
  chunk.part = part;
  chunk.in_encoder = part.begin < border;
  chunk.in_decoder = part.end >= border;
  chunk.encoder = std::make_unique<LayerStack>(
      LayerStackOptions{T5EncoderOptions(options()), options().layer_recompute, part.begin,
                        std::max<int64_t>(std::min(part.end, border) - part.begin, 0)},
      tensor_group());
  const int64_t decoder_begin = std::max(part.begin, border);
  chunk.decoder = std::make_unique<LayerStack>(
      LayerStackOptions{T5DecoderOptions(options()), options().layer_recompute,
                        decoder_begin - border, std::max<int64_t>(part.end - decoder_begin, 0)},
      tensor_group());
  return chunk;
}

void T5Stage::MakePositions(Device device, MemoryLedger* ledger) {
  const auto make = [&](const TransformerOptions& stack) {
    return std::make_unique<RelativePositions>(
        stack, stack.name + "_relative_pos_emb.relative_attention_bias", tensor_group(), device,
        ledger);
  };
  encoder_positions_ = make(T5EncoderOptions(options()));
  decoder_positions_ = make(T5DecoderOptions(options()));
}

void T5Stage::AppendInnerParameters(std::vector<Parameter*>* out) {
  for (RelativePositions* positions : {encoder_positions_.get(), decoder_positions_.get()}) {
    if (positions != nullptr) positions->AppendParameters(out);
  }
  for (const Chunk& chunk : chunks_) {
    chunk.encoder->AppendParameters(out);
    if (chunk.ends_encoder()) {
      std::vector<Parameter*> norm;
      encoder_norm_->AppendParameters(&norm);
      encoder_norm_block_ = NextBlock(*out);
      AppendBlock(norm, out);
    }
    chunk.decoder->AppendParameters(out);
  }
}

void T5Stage::SetSlots(const StageMemory::Slots& slots) {
  for (size_t c = 0; c < chunks_.size(); ++c) chunks_[c].saved.resize(slots[c].size());
}

std::vector<TensorSpec> T5Stage::EdgeSpecs(int microbatch, bool in_encoder) const {
  const TransformerOptions& transformer = options().transformer;
  const MicroBatch& tokens = batch(microbatch);
  std::vector<TensorSpec> specs = {HiddenSpec(tokens.encoder.num_tokens()),
                                   HiddenSpec(tokens.num_tokens())};
  if (!relative()) return specs;
  const TensorSpec bias = {DType::kFloat32,
                           {2 * transformer.relative_positions.max_distance + 1,
                            transformer.num_attention_heads / tensor_group().size()}};
  specs.push_back(bias);
  if (in_encoder) specs.push_back(bias);
  return specs;
}

std::vector<TensorSpec> T5Stage::InputSpecs(int microbatch, int chunk) const {
  if (chunks_[chunk].part.first) return {};
  return EdgeSpecs(microbatch, chunks_[chunk].in_encoder);
}

std::vector<TensorSpec> T5Stage::OutputSpecs(int microbatch, int chunk) const {
  if (chunks_[chunk].part.last) return {};
  return EdgeSpecs(microbatch, !chunks_[chunk].in_decoder);
}

T5Stage::Streams T5Stage::FromEdge(absl::Span<const Tensor> tensors, bool in_encoder) const {
  Streams streams = {tensors[0], tensors[1], Tensor(), Tensor()};
  if (relative()) streams.decoder_bias_WN = tensors[2];
  if (relative() && in_encoder) streams.encoder_bias_WN = tensors[3];
  return streams;
}

T5Stage::Contexts::Contexts(const LayerContext& ctx)
    : encoder_batch(EncoderView(*ctx.batch)), encoder(ctx), decoder(ctx) {
  encoder.batch = &encoder_batch;
}

Tensor T5Stage::AllocateBias(Arena* arena) const {
  return arena->Allocate(DType::kFloat32, encoder_positions_->bias_shape(), "relative positions");
}

bool T5Stage::TrainsInFront(const Chunk& chunk) const {
  if (!chunk.part.first) return chunk.part.trains_before;
  return embedding()->IsTrained() ||
         (relative() && (encoder_positions_->IsTrained() || decoder_positions_->IsTrained()));
}

bool T5Stage::TrainsInFrontOfDecoder(const Chunk& chunk) const {
  return TrainsInFront(chunk) || chunk.encoder->IsTrained() ||
         (chunk.ends_encoder() && encoder_norm_->IsTrained());
}

T5Stage::Streams T5Stage::AllocateGradients(const Contexts& contexts, const WorkItem& item) const {
  Arena* const scratch = contexts.decoder.scratch;
  const Chunk& chunk = chunks_[item.chunk];
  std::vector<Tensor> tensors;
  for (const TensorSpec& spec : EdgeSpecs(item.microbatch, chunk.in_encoder))
    tensors.push_back(scratch->Allocate(spec.dtype, spec.shape, "layer gradient"));
  return FromEdge(tensors, chunk.in_encoder);
}

T5Stage::Streams T5Stage::Embed(const Contexts& contexts, Saved* saved) const {
  const LayerContext& ctx = contexts.decoder;
  Streams streams = {AllocateHidden(ctx.saved, contexts.encoder, "embedding"),
                     AllocateHidden(ctx.saved, ctx, "embedding"), Tensor(), Tensor()};
  embedding()->Forward(contexts.encoder, streams.encoder_UH, &saved->encoder_embedding);
  embedding()->Forward(ctx, streams.decoder_TH, &saved->decoder_embedding,
                       DropoutSite::kDecoderEmbedding);
  if (!relative()) return streams;
  streams.decoder_bias_WN = AllocateBias(ctx.saved);
  streams.encoder_bias_WN = AllocateBias(ctx.saved);
  encoder_positions_->Forward(ctx, streams.encoder_bias_WN);
  decoder_positions_->Forward(ctx, streams.decoder_bias_WN);
  return streams;
}

void T5Stage::EmbedBackward(const Contexts& contexts, const Streams& gradients,
                            const Saved& saved) {
  if (relative()) {
    decoder_positions_->Backward(contexts.decoder, gradients.decoder_bias_WN);
    encoder_positions_->Backward(contexts.decoder, gradients.encoder_bias_WN);
  }
  embedding()->Backward(contexts.decoder, gradients.decoder_TH, saved.decoder_embedding,
                        DropoutSite::kDecoderEmbedding, /*last=*/false);
  embedding()->Backward(contexts.encoder, gradients.encoder_UH, saved.encoder_embedding);
}

// The encoder's output stays in the part where the encoder ends, whose decoder layers read it, too.
void T5Stage::ForwardEncoder(const Chunk& chunk, const Contexts& contexts, const Streams& out,
                             Saved* saved) const {
  LayerContext ctx = contexts.encoder;
  ctx.relative_bias_WN = saved->in.encoder_bias_WN;
  if (!chunk.ends_encoder()) {
    RunLayers(*chunk.encoder, ctx, nullptr, saved->in.encoder_UH, out.encoder_UH, &saved->encoder);
    Pass(ctx.stream, saved->in.decoder_TH, out.decoder_TH);
    Pass(ctx.stream, saved->in.decoder_bias_WN, out.decoder_bias_WN);
    Pass(ctx.stream, saved->in.encoder_bias_WN, out.encoder_bias_WN);
    return;
  }
  const Tensor y_UH = AllocateHidden(ctx.saved, ctx, "layer output");
  RunLayers(*chunk.encoder, ctx, nullptr, saved->in.encoder_UH, y_UH, &saved->encoder);
  saved->encoder_output_UH = AllocateHidden(ctx.saved, ctx, "norm output");
  const WeightsInUse weights(ctx.blocks, encoder_norm_block_);
  encoder_norm_->Forward(ctx, y_UH, saved->encoder_output_UH, &saved->encoder_norm);
}

void T5Stage::ForwardDecoder(const Chunk& chunk, Contexts* contexts, const Streams& out,
                             Saved* saved) {
  LayerContext& ctx = contexts->decoder;
  if (!chunk.in_encoder) saved->encoder_output_UH = saved->in.encoder_UH;
  ctx.encoder_UH = saved->encoder_output_UH;
  ctx.relative_bias_WN = saved->in.decoder_bias_WN;
  const Tensor y_TH =
      chunk.part.last ? AllocateHidden(ctx.saved, ctx, "layer output") : out.decoder_TH;
  RunLayers(*chunk.decoder, ctx, nullptr, saved->in.decoder_TH, y_TH, &saved->decoder);
  if (!chunk.part.last) {
    Pass(ctx.stream, saved->encoder_output_UH, out.encoder_UH);
    Pass(ctx.stream, saved->in.decoder_bias_WN, out.decoder_bias_WN);
  } else {
    RunHead(ctx, y_TH, &saved->head);
  }
}

void T5Stage::Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
                      absl::Span<const Tensor> outputs, const Stream& stream) {
  Chunk& chunk = chunks_[item.chunk];
  Contexts contexts(Context(item, stream));
  contexts.decoder.saved->Reset();
  Saved forgotten;
  Saved* const saved = training() ? &chunk.saved[item.slot] : &forgotten;
  saved->in = chunk.part.first ? Embed(contexts, saved) : FromEdge(inputs, chunk.in_encoder);
  const Streams out = chunk.part.last ? Streams() : FromEdge(outputs, !chunk.in_decoder);
  saved->encoder.trains_in_front = TrainsInFront(chunk);
  saved->decoder.trains_in_front = TrainsInFrontOfDecoder(chunk);
  if (chunk.in_encoder) ForwardEncoder(chunk, contexts, out, saved);
  if (chunk.in_decoder) ForwardDecoder(chunk, &contexts, out, saved);
  // Nothing reads it any more.
  if (training() && !chunk.part.has_backward) contexts.decoder.saved->Reset();
}

void T5Stage::BackwardDecoder(const Chunk& chunk, Contexts* contexts, const Streams& dout,
                              const Streams& din, Saved* saved) {
  LayerContext& ctx = contexts->decoder;
  Tensor dy_TH = dout.decoder_TH;
  if (chunk.part.last) {
    dy_TH = AllocateHidden(ctx.scratch, ctx, "layer gradient");
    RunHeadBack(ctx, dy_TH, &saved->head);
  }
  ctx.encoder_UH = saved->encoder_output_UH;
  ctx.relative_bias_WN = saved->in.decoder_bias_WN;
  ctx.encoder_gradient_UH = din.encoder_UH;
  ctx.relative_bias_gradient_WN = din.decoder_bias_WN;
  StartGradient(ctx.stream, dout.encoder_UH, din.encoder_UH);
  StartGradient(ctx.stream, dout.decoder_bias_WN, din.decoder_bias_WN);
  chunk.decoder->Backward(ctx, nullptr, dy_TH, din.decoder_TH, &saved->decoder);
}

void T5Stage::BackwardEncoder(const Chunk& chunk, Contexts* contexts, const Streams& dout,
                              const Streams& din, Saved* saved) {
  LayerContext& ctx = contexts->encoder;
  Tensor dy_UH = dout.encoder_UH;
  if (chunk.ends_encoder()) {
    dy_UH = AllocateHidden(ctx.scratch, ctx, "layer gradient");
    const WeightsInUse weights(ctx.blocks, encoder_norm_block_);
    const GradientsInUse gradients(ctx.blocks, encoder_norm_block_);
    encoder_norm_->Backward(ctx, dout.encoder_UH, Tensor(), dy_UH, saved->encoder_norm);
  } else {
    Pass(ctx.stream, dout.decoder_TH, din.decoder_TH);
    Pass(ctx.stream, dout.decoder_bias_WN, din.decoder_bias_WN);
  }
  ctx.relative_bias_WN = saved->in.encoder_bias_WN;
  ctx.relative_bias_gradient_WN = din.encoder_bias_WN;
  StartGradient(ctx.stream, dout.encoder_bias_WN, din.encoder_bias_WN);
  chunk.encoder->Backward(ctx, nullptr, dy_UH, din.encoder_UH, &saved->encoder);
}

void T5Stage::Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                       absl::Span<const Tensor> input_gradients, const Stream& stream) {
  Chunk& chunk = chunks_[item.chunk];
  Contexts contexts(Context(item, stream));
  if (contexts.decoder.defers()) contexts.decoder.deferred->Reset();
  Saved& saved = chunk.saved[item.slot];
  Arena* const scratch = contexts.decoder.scratch;
  Arena::Scope scope(scratch);
  Streams dout = chunk.part.last ? Streams() : FromEdge(output_gradients, !chunk.in_decoder);
  const Streams din = input_gradients.empty() ? AllocateGradients(contexts, item)
                                              : FromEdge(input_gradients, chunk.in_encoder);
  if (chunk.in_decoder) {
    Streams decoder_in = din;
    if (chunk.in_encoder)
      decoder_in.encoder_UH = AllocateHidden(scratch, contexts.encoder, "encoder gradient");
    BackwardDecoder(chunk, &contexts, dout, decoder_in, &saved);
    dout = {decoder_in.encoder_UH, Tensor(), Tensor(),
            Tensor()};  // gradient of the encoder's output
  }
  if (chunk.in_encoder && TrainsInFrontOfDecoder(chunk))
    BackwardEncoder(chunk, &contexts, dout, din, &saved);
  if (chunk.part.first && TrainsInFront(chunk)) EmbedBackward(contexts, din, saved);
}

void T5Stage::BackwardWeight(const WorkItem& item, const Stream& stream) {
  Chunk& chunk = chunks_[item.chunk];
  Contexts contexts(Context(item, stream));
  Saved& saved = chunk.saved[item.slot];
  if (chunk.part.last) RunHeadBackWeight(contexts.decoder, saved.head);
  chunk.decoder->BackwardWeight(contexts.decoder, &saved.decoder);
  chunk.encoder->BackwardWeight(contexts.encoder, &saved.encoder);
}

}  // namespace megatron
