// One rank's part of a model that is one stack of layers, GPT or BERT: one chunk of consecutive
// layers, or with an interleaved schedule several. The embedding is in front of the model's first
// chunk, and the head behind its last. A model on one rank is a single chunk.
//
// Layers of multi-token prediction are in the last chunk too, in front of its heads, or behind the
// layers of the chunk before. Then the edge between the two carries the hidden states that each
// head reads, and the last chunk has heads alone.
//
// Legend: T tokens (of the residual stream: those of this rank), H hidden.
#ifndef MEGATRON_MODELS_STACK_STAGE_H_
#define MEGATRON_MODELS_STACK_STAGE_H_

#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "megatron/layers/micro_batch.h"
#include "megatron/layers/rotary.h"
#include "megatron/models/lm_head.h"
#include "megatron/models/model_stage.h"
#include "megatron/models/multi_token_prediction.h"

namespace megatron {

class StackStage : public ModelStage {
 public:
  StackStage(const ModelOptions& options, const Measures& measures, const StageSetup& setup);

  std::vector<TensorSpec> InputSpecs(int microbatch, int chunk) const override;
  std::vector<TensorSpec> OutputSpecs(int microbatch, int chunk) const override;
  void Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
               absl::Span<const Tensor> outputs, const Stream& stream) override;
  void Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                absl::Span<const Tensor> input_gradients, const Stream& stream) override;
  void BackwardWeight(const WorkItem& item, const Stream& stream) override;

 private:
  struct Saved {
    LayerStack::Saved layers;
    TokenEmbedding::Saved embedding;
    HeadSaved head;
    MultiTokenPrediction::Saved mtp;
    std::vector<LmHead::Saved> mtp_heads;
  };
  struct Chunk {
    Part part;
    std::unique_ptr<LayerStack> layers;
    std::vector<Saved> saved;  // one entry a slot
  };

  void AppendInnerParameters(std::vector<Parameter*>* out) override;
  void SetSlots(const StageMemory::Slots& slots) override;

  const RotaryTables* rotary() const { return rotary_.get(); }
  // What the heads read: the model's normalized hidden states, and those of each depth of
  // multi-token prediction.
  using HiddenStates = absl::InlinedVector<Tensor, 1 + kMostMtpDepths>;

  // Returns how many there are in this mode.
  int64_t NumHidden() const;
  HiddenStates AllocateHiddenStates(Arena* arena, const LayerContext& ctx, const char* name) const;
  // Returns whether the chunk has heads alone, which another chunk's multi-token prediction feeds.
  bool HasHeadsAlone(const Chunk& chunk) const {
    return chunk.part.last && !chunk.part.has_mtp && depths_ > 0;
  }
  std::vector<TensorSpec> EdgeSpecs(int microbatch, int64_t tensors) const;
  void RunHeads(const LayerContext& ctx, absl::Span<const Tensor> hidden, Saved* saved) const;
  void RunHeadsBack(const LayerContext& ctx, absl::Span<const Tensor> dhidden, Saved* saved);
  // Returns whether anything in front of the chunk's layers is trained.
  bool TrainsInFront(const Chunk& chunk) const {
    return chunk.part.first ? embedding()->IsTrained() : chunk.part.trains_before;
  }
  // The input of the chunk's layers: the embedding, or what the stage before sent.
  Tensor ChunkInput(const LayerContext& ctx, const Chunk& chunk, absl::Span<const Tensor> inputs,
                    TokenEmbedding::Saved* saved) const;

  std::unique_ptr<RotaryTables> rotary_;
  std::vector<Chunk> chunks_;
  const int64_t depths_;                            // how far multi-token prediction goes
  std::unique_ptr<MultiTokenPrediction> mtp_;       // null unless a chunk has it
  std::vector<std::unique_ptr<LmHead>> mtp_heads_;  // the last stage's, one a depth
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_STACK_STAGE_H_
