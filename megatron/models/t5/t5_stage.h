// One rank's part of a model with an encoder and a decoder: parts of consecutive layers, the
// encoder's before the decoder's, with the embedding in front of the first and the head behind the
// last. A part may hold layers of both stacks.
//
// All that is needed behind an edge between two parts crosses it:
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
#ifndef MEGATRON_MODELS_T5_T5_STAGE_H_
#define MEGATRON_MODELS_T5_T5_STAGE_H_

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "megatron/layers/norm_layer.h"
#include "megatron/layers/relative_positions.h"
#include "megatron/models/model_stage.h"
#include "megatron/models/t5/t5_options.h"

namespace megatron {

class T5Stage : public ModelStage {
 public:
  // `setup.placement.layers` counts the encoder's layers and then the decoder's.
  T5Stage(const ModelOptions& options, const Measures& measures, const StageSetup& setup);

  std::vector<TensorSpec> InputSpecs(int microbatch, int chunk) const override;
  std::vector<TensorSpec> OutputSpecs(int microbatch, int chunk) const override;
  void Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
               absl::Span<const Tensor> outputs, const Stream& stream) override;
  void Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                absl::Span<const Tensor> input_gradients, const Stream& stream) override;
  void BackwardWeight(const WorkItem& item, const Stream& stream) override;

 private:
  // The tensors that cross an edge, or their gradients; biases may be empty.
  struct Streams {
    Tensor encoder_UH, decoder_TH, decoder_bias_WN, encoder_bias_WN;
  };
  struct Saved {
    Streams in;
    Tensor encoder_output_UH;
    LayerStack::Saved encoder, decoder;
    TokenEmbedding::Saved encoder_embedding, decoder_embedding;
    NormLayer::Saved encoder_norm;
    HeadSaved head;
  };
  struct Chunk {
    Part part;
    // in_encoder is true if its input is in front of the encoder's end, in_decoder if its output is
    // behind it.
    bool in_encoder = false, in_decoder = false;
    std::unique_ptr<LayerStack> encoder, decoder;
    std::vector<Saved> saved;  // one entry a slot

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
  void MakePositions(Device device, MemoryLedger* ledger);
  void AppendInnerParameters(std::vector<Parameter*>* out) override;
  void SetSlots(const StageMemory::Slots& slots) override;

  bool relative() const { return options().transformer.relative_positions.buckets > 0; }
  std::vector<TensorSpec> EdgeSpecs(int microbatch, bool in_encoder) const;
  Streams FromEdge(absl::Span<const Tensor> tensors, bool in_encoder) const;
  Tensor AllocateBias(Arena* arena) const;
  // Returns whether anything in front of the chunk's layers is trained, and whether anything in
  // front of its decoder's layers is.
  bool TrainsInFront(const Chunk& chunk) const;
  bool TrainsInFrontOfDecoder(const Chunk& chunk) const;
  // Returns memory in scratch for the gradients of a chunk's input that are not sent.
  Streams AllocateGradients(const Contexts& contexts, const WorkItem& item) const;

  Streams Embed(const Contexts& contexts, Saved* saved) const;
  void EmbedBackward(const Contexts& contexts, const Streams& gradients, const Saved& saved);
  void ForwardEncoder(const Chunk& chunk, const Contexts& contexts, const Streams& out,
                      Saved* saved) const;
  void ForwardDecoder(const Chunk& chunk, Contexts* contexts, const Streams& out, Saved* saved);
  void BackwardDecoder(const Chunk& chunk, Contexts* contexts, const Streams& dout,
                       const Streams& din, Saved* saved);
  void BackwardEncoder(const Chunk& chunk, Contexts* contexts, const Streams& dout,
                       const Streams& din, Saved* saved);

  std::vector<Chunk> chunks_;
  // The relative positions of the first stage of a model that has them; else null.
  std::unique_ptr<RelativePositions> encoder_positions_, decoder_positions_;
  std::unique_ptr<NormLayer> encoder_norm_;  // set on the stage with the encoder's end
  int encoder_norm_block_ = WeightBlocks::kNone;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_T5_T5_STAGE_H_
