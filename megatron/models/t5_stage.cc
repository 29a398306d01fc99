#include "megatron/models/t5_stage.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "glog/logging.h"
#include "megatron/ops/elementwise.h"

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
  return encoder;
}

// out = x, where there is such a tensor.
void Pass(const Stream& stream, const Tensor& x, const Tensor& out) {
  if (x && out) ops::Copy(stream, x, out);
}

// out = the gradient from behind, or zeros where there is nothing behind.
void StartGradient(const Stream& stream, const Tensor& from_behind, const Tensor& out) {
  if (!out) return;
  if (from_behind) return ops::Copy(stream, from_behind, out);
  ops::Zero(stream, out);
}

}  // namespace

T5Stage::T5Stage(const GptOptions& options, const StagePlacement& placement,
                 const ProcessGroup& tensor_group, Device device, MemoryLedger* ledger)
    : options_(options), placement_(placement), tensor_group_(tensor_group) {
  CHECK_GT(options.num_encoder_layers, 0);
  const TransformerOptions& transformer = options.transformer;
  CHECK(transformer.moe.num_experts == 0 && !transformer.rotary && !transformer.post_norm);
  CHECK_EQ(transformer.num_query_groups, transformer.num_attention_heads);
  options_.transformer.name = "decoder";
  const int64_t layers = options.num_encoder_layers + transformer.num_layers;
  const int parts = placement.stages * placement.chunks;
  if (placement_.layers.empty()) {
    CHECK_EQ(layers % parts, 0) << layers << " over " << parts;
    placement_.layers.assign(parts, layers / parts);
  }
  CHECK_EQ(static_cast<int>(placement_.layers.size()), parts);
  CHECK_EQ(std::accumulate(placement_.layers.begin(), placement_.layers.end(), int64_t{0}), layers);
  for (int chunk = 0; chunk < placement.chunks; ++chunk) chunks_.push_back(MakeChunk(chunk));
  if (ends_encoder()) {
    encoder_norm_ = std::make_unique<NormLayer>(
        NormOptions{transformer.norm, "encoder.final_layernorm.weight",
                    "encoder.final_layernorm.bias", transformer.hidden_size,
                    /*partial_over_tensor=*/transformer.sequence_parallel});
  }
  MakeEmbedding(device, ledger);
  if (placement.last()) MakeHead(device, ledger);
}

T5Stage::Chunk T5Stage::MakeChunk(int index) const {
  const int part = PositionOf(placement_.order, placement_.stages, {placement_.stage, index});
  const int64_t border = options_.num_encoder_layers;
  const int64_t begin =
      std::accumulate(placement_.layers.begin(), placement_.layers.begin() + part, int64_t{0});
  const int64_t end = begin + placement_.layers[part];
  Chunk chunk;
  chunk.first = part == 0;
  chunk.last = part == static_cast<int>(placement_.layers.size()) - 1;
  chunk.in_encoder = begin < border;
  chunk.in_decoder = end >= border;
  chunk.encoder = std::make_unique<LayerStack>(
      LayerStackOptions{T5EncoderOptions(options_), options_.layer_recompute, begin,
                        std::max<int64_t>(std::min(end, border) - begin, 0)},
      tensor_group_);
  const int64_t decoder_begin = std::max(begin, border);
  chunk.decoder = std::make_unique<LayerStack>(
      LayerStackOptions{T5DecoderOptions(options_), options_.layer_recompute,
                        decoder_begin - border, std::max<int64_t>(end - decoder_begin, 0)},
      tensor_group_);
  return chunk;
}

bool T5Stage::ends_encoder() const {
  return std::any_of(chunks_.begin(), chunks_.end(),
                     [](const Chunk& chunk) { return chunk.ends_encoder(); });
}

std::unique_ptr<VocabParallelEmbedding> T5Stage::MakeTable(const std::string& name,
                                                           float init_std) const {
  return std::make_unique<VocabParallelEmbedding>(
      name, options_.padded_vocab_size, options_.transformer.hidden_size, init_std, tensor_group_);
}

void T5Stage::MakeEmbedding(Device device, MemoryLedger* ledger) {
  if (placement_.first() || (placement_.last() && options_.tied_embeddings)) {
    word_embeddings_ = MakeTable("embedding.word_embeddings.weight", options_.embedding_init_std);
    word_embeddings_->weight().tied = options_.tied_embeddings && placement_.last_stage() != 0;
    word_embeddings_->weight().owner = placement_.first();
  }
  if (!placement_.first()) return;
  embedding_ = std::make_unique<TokenEmbedding>(options_, word_embeddings_.get());
  if (!relative()) return;
  const auto make = [&](const TransformerOptions& stack) {
    return std::make_unique<RelativePositions>(
        stack, stack.name + "_relative_pos_emb.relative_attention_bias", tensor_group_, device,
        ledger);
  };
  encoder_positions_ = make(T5EncoderOptions(options_));
  decoder_positions_ = make(T5DecoderOptions(options_));
}

void T5Stage::MakeHead(Device device, MemoryLedger* ledger) {
  if (!options_.tied_embeddings)
    output_layer_ = MakeTable("output_layer.weight", options_.transformer.init_std);
  head_ = std::make_unique<LmHead>(options_, tensor_group_,
                                   &(output_layer_ ? output_layer_ : word_embeddings_)->weight());
  const Shape sums{static_cast<int64_t>(measures().size()), 2};
  loss_buffer_ = Buffer(device, sums.numel() * SizeOf(DType::kFloat32), "loss", ledger);
  loss_sums_ = loss_buffer_.At(0, DType::kFloat32, sums);
}

std::vector<Parameter*> T5Stage::parameters() {
  std::vector<Parameter*> all;
  if (embedding_ != nullptr) {
    embedding_->AppendParameters(&all);
    for (RelativePositions* positions : {encoder_positions_.get(), decoder_positions_.get()}) {
      if (positions != nullptr) positions->AppendParameters(&all);
    }
  } else if (word_embeddings_ != nullptr) {
    AppendBlock({&word_embeddings_->weight()}, &all);
  }
  for (const Chunk& chunk : chunks_) {
    chunk.encoder->AppendParameters(&all);
    if (chunk.ends_encoder()) {
      std::vector<Parameter*> norm;
      encoder_norm_->AppendParameters(&norm);
      encoder_norm_block_ = NextBlock(all);
      AppendBlock(norm, &all);
    }
    chunk.decoder->AppendParameters(&all);
  }
  if (head_ != nullptr) head_->AppendParameters(&all);
  if (output_layer_ != nullptr) AppendBlock({&output_layer_->weight()}, &all);
  return all;
}

void T5Stage::SetContextGroup(const ProcessGroup& group) {
  CHECK_EQ(group.size(), 1) << "context-parallel ranks of a model with cross-attention";
}

void T5Stage::SetMemory(StageMemory* memory) {
  memory_ = memory;
  CHECK_EQ(memory->slots.size(), chunks_.size());
  for (size_t c = 0; c < chunks_.size(); ++c) chunks_[c].saved.resize(memory->slots[c].size());
}

void T5Stage::StartPredicting(int64_t token, const Tensor& logits_V) {
  mode_ = Mode::kPredict;
  predicted_token_ = token;
  predicted_logits_V_ = logits_V;
}

// A text may have any number of tokens while it grows: they are not shared out.
bool T5Stage::sequence_parallel() const {
  return options_.transformer.sequence_parallel && tensor_group_.size() > 1 &&
         mode_ != Mode::kPredict;
}

std::vector<TensorSpec> T5Stage::EdgeSpecs(int microbatch, bool in_encoder) const {
  const TransformerOptions& transformer = options_.transformer;
  const MicroBatch& batch = (*batches_)[microbatch];
  const int64_t ranks = sequence_parallel() ? tensor_group_.size() : 1;
  const auto rows = [&](int64_t tokens) -> TensorSpec {
    return {transformer.dtype, {tokens / ranks, transformer.hidden_size}};
  };
  std::vector<TensorSpec> specs = {rows(batch.encoder.num_tokens()), rows(batch.num_tokens())};
  if (!relative()) return specs;
  const TensorSpec bias = {DType::kFloat32,
                           {2 * transformer.relative_positions.max_distance + 1,
                            transformer.num_attention_heads / tensor_group_.size()}};
  specs.push_back(bias);
  if (in_encoder) specs.push_back(bias);
  return specs;
}

std::vector<TensorSpec> T5Stage::InputSpecs(int microbatch, int chunk) const {
  if (chunks_[chunk].first) return {};
  return EdgeSpecs(microbatch, chunks_[chunk].in_encoder);
}

std::vector<TensorSpec> T5Stage::OutputSpecs(int microbatch, int chunk) const {
  if (chunks_[chunk].last) return {};
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

LayerContext T5Stage::Context(const WorkItem& item, const Stream& stream) const {
  return {
      tensor_group_,
      stream,
      memory_->slots[item.chunk][item.slot].get(),
      &memory_->scratch,
      &(*batches_)[item.microbatch],
      options_.dropout_seed,
      mode_ == Mode::kTrain,
      sequence_parallel(),
      &memory_->recompute,
      item.deferred_slot < 0 ? nullptr : memory_->deferred[item.chunk][item.deferred_slot].get(),
      blocks_};
}

Tensor T5Stage::AllocateHidden(Arena* arena, const LayerContext& ctx, const char* name) const {
  return arena->Allocate(options_.transformer.dtype, {ctx.rows(), options_.transformer.hidden_size},
                         name);
}

Tensor T5Stage::AllocateBias(Arena* arena) const {
  return arena->Allocate(DType::kFloat32, encoder_positions_->bias_shape(), "relative positions");
}

T5Stage::Streams T5Stage::Embed(const Contexts& contexts, Saved* saved) const {
  const LayerContext& ctx = contexts.decoder;
  Streams streams = {AllocateHidden(ctx.saved, contexts.encoder, "embedding"),
                     AllocateHidden(ctx.saved, ctx, "embedding"), Tensor(), Tensor()};
  embedding_->Forward(contexts.encoder, streams.encoder_UH, &saved->encoder_embedding);
  embedding_->Forward(ctx, streams.decoder_TH, &saved->decoder_embedding,
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
  embedding_->Backward(contexts.decoder, gradients.decoder_TH, saved.decoder_embedding,
                       DropoutSite::kDecoderEmbedding, /*last=*/false);
  embedding_->Backward(contexts.encoder, gradients.encoder_UH, saved.encoder_embedding);
}

void T5Stage::Run(const LayerStack& stack, const LayerContext& ctx, const Tensor& x_TH,
                  const Tensor& y_TH, LayerStack::Saved* saved) const {
  if (mode_ == Mode::kTrain) return stack.Forward(ctx, nullptr, x_TH, y_TH, saved);
  stack.ForwardOnly(ctx, nullptr, x_TH, y_TH);
}

// Where the encoder ends, its output stays here as well: the decoder's layers of this part read it.
void T5Stage::ForwardEncoder(const Chunk& chunk, const Contexts& contexts, const Streams& out,
                             Saved* saved) const {
  LayerContext ctx = contexts.encoder;
  ctx.relative_bias_WN = saved->in.encoder_bias_WN;
  if (!chunk.ends_encoder()) {
    Run(*chunk.encoder, ctx, saved->in.encoder_UH, out.encoder_UH, &saved->encoder);
    Pass(ctx.stream, saved->in.decoder_TH, out.decoder_TH);
    Pass(ctx.stream, saved->in.decoder_bias_WN, out.decoder_bias_WN);
    Pass(ctx.stream, saved->in.encoder_bias_WN, out.encoder_bias_WN);
    return;
  }
  const Tensor y_UH = AllocateHidden(ctx.saved, ctx, "layer output");
  Run(*chunk.encoder, ctx, saved->in.encoder_UH, y_UH, &saved->encoder);
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
  const Tensor y_TH = chunk.last ? AllocateHidden(ctx.saved, ctx, "layer output") : out.decoder_TH;
  Run(*chunk.decoder, ctx, saved->in.decoder_TH, y_TH, &saved->decoder);
  if (!chunk.last) {
    Pass(ctx.stream, saved->encoder_output_UH, out.encoder_UH);
    Pass(ctx.stream, saved->in.decoder_bias_WN, out.decoder_bias_WN);
  } else if (mode_ == Mode::kPredict) {
    head_->Predict(ctx, y_TH, predicted_token_, predicted_logits_V_);
  } else {
    head_->Forward(ctx, y_TH, loss_sums_, &saved->head);
  }
}

void T5Stage::Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
                      absl::Span<const Tensor> outputs, const Stream& stream) {
  Chunk& chunk = chunks_[item.chunk];
  Contexts contexts(Context(item, stream));
  contexts.decoder.saved->Reset();
  Saved forgotten;
  Saved* const saved = mode_ == Mode::kTrain ? &chunk.saved[item.slot] : &forgotten;
  saved->in = chunk.first ? Embed(contexts, saved) : FromEdge(inputs, chunk.in_encoder);
  const Streams out = chunk.last ? Streams() : FromEdge(outputs, !chunk.in_decoder);
  if (chunk.in_encoder) ForwardEncoder(chunk, contexts, out, saved);
  if (chunk.in_decoder) ForwardDecoder(chunk, &contexts, out, saved);
}

void T5Stage::BackwardDecoder(const Chunk& chunk, Contexts* contexts, const Streams& dout,
                              const Streams& din, Saved* saved) {
  LayerContext& ctx = contexts->decoder;
  Tensor dy_TH = dout.decoder_TH;
  if (chunk.last) {
    dy_TH = AllocateHidden(ctx.scratch, ctx, "layer gradient");
    head_->Backward(ctx, dy_TH, &saved->head);
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
  Streams dout = chunk.last ? Streams() : FromEdge(output_gradients, !chunk.in_decoder);
  Streams din;
  if (chunk.first) {
    din.encoder_UH = AllocateHidden(scratch, contexts.encoder, "layer gradient");
    din.decoder_TH = AllocateHidden(scratch, contexts.decoder, "layer gradient");
    if (relative()) din.decoder_bias_WN = AllocateBias(scratch);
    if (relative()) din.encoder_bias_WN = AllocateBias(scratch);
  } else {
    din = FromEdge(input_gradients, chunk.in_encoder);
  }
  if (chunk.in_decoder) {
    Streams decoder_in = din;
    if (chunk.in_encoder)
      decoder_in.encoder_UH = AllocateHidden(scratch, contexts.encoder, "encoder gradient");
    BackwardDecoder(chunk, &contexts, dout, decoder_in, &saved);
    dout = {decoder_in.encoder_UH, Tensor(), Tensor(), Tensor()};  // of the encoder's output
  }
  if (chunk.in_encoder) BackwardEncoder(chunk, &contexts, dout, din, &saved);
  if (chunk.first) EmbedBackward(contexts, din, saved);
}

void T5Stage::BackwardWeight(const WorkItem& item, const Stream& stream) {
  Chunk& chunk = chunks_[item.chunk];
  Contexts contexts(Context(item, stream));
  Saved& saved = chunk.saved[item.slot];
  if (chunk.last) head_->BackwardWeight(contexts.decoder, saved.head);
  chunk.decoder->BackwardWeight(contexts.decoder, &saved.decoder);
  chunk.encoder->BackwardWeight(contexts.encoder, &saved.encoder);
}

}  // namespace megatron
