// One rank's part of a model with an encoder and a decoder: parts of consecutive layers, the
// encoder's before the decoder's, with the embedding in front of the first and the head behind the
// last. A part may hold layers of both stacks.
//
// What crosses an edge between two parts is all that is needed behind it:
//   encoder_UH        what the encoder's layers so far have made of it; behind the encoder, its
//                     normalized output, to whose gradient every part of the decoder adds its own
//   decoder_TH        the decoder's stream; in front of its first layer, its embedding
//   decoder_bias_WN   with relative positions: what the decoder's layers add to scores, and
//   encoder_bias_WN   in front of the encoder's end, what its layers do
// So the first part alone embeds tokens and holds tables of positions. With one part there are no
// edges and no copies.
//
// Legend: T tokens of the decoder, U of the encoder (of the residual streams: those of this rank),
// H hidden, W distances, N heads of this rank.
#ifndef MEGATRON_MODELS_T5_STAGE_H_
#define MEGATRON_MODELS_T5_STAGE_H_

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/norm_layer.h"
#include "megatron/layers/relative_positions.h"
#include "megatron/layers/vocab_parallel_embedding.h"
#include "megatron/models/layer_stack.h"
#include "megatron/models/lm_head.h"
#include "megatron/models/stage_memory.h"
#include "megatron/models/t5_options.h"
#include "megatron/models/token_embedding.h"
#include "megatron/models/trained_stage.h"

namespace megatron {

class T5Stage : public TrainedStage {
 public:
  // `placement.layers` counts the encoder's layers and then the decoder's. `device` and `ledger`
  // are of the only memory that a stage owns: lists of distances, sums.
  T5Stage(const GptOptions& options, const StagePlacement& placement,
          const ProcessGroup& tensor_group, Device device, MemoryLedger* ledger);

  std::vector<Parameter*> parameters() override;
  const StagePlacement& placement() const override { return placement_; }
  int64_t padded_vocab_size() const override { return options_.padded_vocab_size; }
  // Of one rank: cross-attention needs all tokens.
  void SetContextGroup(const ProcessGroup& group) override;
  void SetMemory(StageMemory* memory) override;
  void SetBatches(const std::vector<MicroBatch>* batches) override { batches_ = batches; }
  void SetBlocks(WeightBlocks* blocks) override { blocks_ = blocks; }
  void set_training(bool training) override { mode_ = training ? Mode::kTrain : Mode::kEvaluate; }
  void StartPredicting(int64_t token, const Tensor& logits_V) override;

  std::vector<TensorSpec> InputSpecs(int microbatch, int chunk) const override;
  std::vector<TensorSpec> OutputSpecs(int microbatch, int chunk) const override;
  void Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
               absl::Span<const Tensor> outputs, const Stream& stream) override;
  void Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                absl::Span<const Tensor> input_gradients, const Stream& stream) override;
  void BackwardWeight(const WorkItem& item, const Stream& stream) override;

  Measures measures() const override { return MeasuresOf(options_); }
  const Tensor& loss_sums() const override { return loss_sums_; }
  RouterState& router_state() override { return no_router_state_; }
  std::vector<MoeLayer*> moe_layers() const override { return {}; }

 private:
  enum class Mode { kTrain, kEvaluate, kPredict };
  // What crosses an edge, or its gradient; biases may be empty.
  struct Streams {
    Tensor encoder_UH, decoder_TH, decoder_bias_WN, encoder_bias_WN;
  };
  struct Saved {
    Streams in;
    Tensor encoder_output_UH;
    LayerStack::Saved encoder, decoder;
    TokenEmbedding::Saved encoder_embedding, decoder_embedding;
    NormLayer::Saved encoder_norm;
    LmHead::Saved head;
  };
  struct Chunk {
    bool first = false, last = false;  // of the model's parts
    // Whether its input is in front of the encoder's end, and its output behind it.
    bool in_encoder = false, in_decoder = false;
    std::unique_ptr<LayerStack> encoder, decoder;
    std::vector<Saved> saved;  // by slot

    bool ends_encoder() const { return in_encoder && in_decoder; }
  };
  // The decoder's context and the encoder's, each with its own batch.
  struct Contexts {
    explicit Contexts(const LayerContext& ctx);
    Contexts(const Contexts&) = delete;
    Contexts& operator=(const Contexts&) = delete;

    MicroBatch encoder_batch;
    LayerContext encoder, decoder;
  };

  Chunk MakeChunk(int chunk) const;
  std::unique_ptr<VocabParallelEmbedding> MakeTable(const std::string& name, float init_std) const;
  void MakeEmbedding(Device device, MemoryLedger* ledger);
  void MakeHead(Device device, MemoryLedger* ledger);
  bool ends_encoder() const;  // on one of its parts

  bool relative() const { return options_.transformer.relative_positions.buckets > 0; }
  bool sequence_parallel() const;
  std::vector<TensorSpec> EdgeSpecs(int microbatch, bool in_encoder) const;
  Streams FromEdge(absl::Span<const Tensor> tensors, bool in_encoder) const;
  LayerContext Context(const WorkItem& item, const Stream& stream) const;
  Tensor AllocateHidden(Arena* arena, const LayerContext& ctx, const char* name) const;
  Tensor AllocateBias(Arena* arena) const;

  Streams Embed(const Contexts& contexts, Saved* saved) const;
  void EmbedBackward(const Contexts& contexts, const Streams& gradients, const Saved& saved);
  void Run(const LayerStack& stack, const LayerContext& ctx, const Tensor& x_TH, const Tensor& y_TH,
           LayerStack::Saved* saved) const;
  void ForwardEncoder(const Chunk& chunk, const Contexts& contexts, const Streams& out,
                      Saved* saved) const;
  void ForwardDecoder(const Chunk& chunk, Contexts* contexts, const Streams& out, Saved* saved);
  void BackwardDecoder(const Chunk& chunk, Contexts* contexts, const Streams& dout,
                       const Streams& din, Saved* saved);
  void BackwardEncoder(const Chunk& chunk, Contexts* contexts, const Streams& dout,
                       const Streams& din, Saved* saved);

  GptOptions options_;
  StagePlacement placement_;
  ProcessGroup tensor_group_;
  RouterState no_router_state_;
  // On the first stage; on the last too if it is tied, there as a copy.
  std::unique_ptr<VocabParallelEmbedding> word_embeddings_;
  std::unique_ptr<VocabParallelEmbedding> output_layer_;  // the last stage's, where not tied
  // On the first stage; the latter two with relative positions.
  std::unique_ptr<TokenEmbedding> embedding_;
  std::unique_ptr<RelativePositions> encoder_positions_, decoder_positions_;
  std::vector<Chunk> chunks_;
  std::unique_ptr<NormLayer> encoder_norm_;  // where the encoder ends
  int encoder_norm_block_ = WeightBlocks::kNone;
  std::unique_ptr<LmHead> head_;  // on the last stage

  Buffer loss_buffer_;
  Tensor loss_sums_;
  StageMemory* memory_ = nullptr;
  WeightBlocks* blocks_ = nullptr;
  const std::vector<MicroBatch>* batches_ = nullptr;
  Mode mode_ = Mode::kTrain;
  int64_t predicted_token_ = 0;
  Tensor predicted_logits_V_;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_T5_STAGE_H_
