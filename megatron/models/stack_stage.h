// One rank's part of a model that is one stack of layers, GPT or BERT: one chunk of consecutive
// layers, or with an interleaved schedule several. The embedding is in front of the model's first
// chunk, the head behind its last, and multi-token prediction behind that. A model on one rank is a
// single chunk.
//
// Legend: T tokens (of the residual stream: those of this rank), H hidden.
#ifndef MEGATRON_MODELS_STACK_STAGE_H_
#define MEGATRON_MODELS_STACK_STAGE_H_

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "megatron/layers/rotary.h"
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
  };
  struct Chunk {
    bool first = false, last = false;  // whether it is the model's first part, its last
    std::unique_ptr<LayerStack> layers;
    std::vector<Saved> saved;  // one entry a slot
  };

  void AppendInnerParameters(std::vector<Parameter*>* out) override;
  void SetSlots(const StageMemory::Slots& slots) override;

  const RotaryTables* rotary() const { return rotary_.get(); }
  // The input of the chunk's layers: the embedding, or what the stage before sent.
  Tensor ChunkInput(const LayerContext& ctx, const Chunk& chunk, absl::Span<const Tensor> inputs,
                    TokenEmbedding::Saved* saved) const;

  std::unique_ptr<RotaryTables> rotary_;
  std::vector<Chunk> chunks_;
  std::unique_ptr<MultiTokenPrediction> mtp_;  // the last stage's; may be null
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_STACK_STAGE_H_
