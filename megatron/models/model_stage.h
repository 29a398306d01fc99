// What the stages of all models share: the model's two ends, which parts of it lie here, the memory
// to work in, what is measured. A model adds its layers, what crosses an edge, and the way through
// them.
//
// Legend: T tokens (of the residual stream: those of this rank), H hidden, V padded vocabulary.
#ifndef MEGATRON_MODELS_MODEL_STAGE_H_
#define MEGATRON_MODELS_MODEL_STAGE_H_

#include <memory>
#include <string>
#include <vector>

#include "megatron/layers/layer_context.h"
#include "megatron/layers/rotary.h"
#include "megatron/layers/vocab_parallel_embedding.h"
#include "megatron/models/layer_stack.h"
#include "megatron/models/lm_head.h"
#include "megatron/models/model_options.h"
#include "megatron/models/stage_memory.h"
#include "megatron/models/token_embedding.h"
#include "megatron/models/trained_stage.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

class ModelStage : public TrainedStage {
 public:
  std::vector<Parameter*> parameters() final;
  const StagePlacement& placement() const final { return placement_; }
  int64_t padded_vocab_size() const final { return options_.padded_vocab_size; }

  void SetContextGroup(const ProcessGroup& group) final { context_group_ = group; }
  void SetMemory(StageMemory* memory) final;
  void SetBatches(const std::vector<MicroBatch>* batches) final { batches_ = batches; }
  void SetBlocks(WeightBlocks* blocks) final { blocks_ = blocks; }
  void set_training(bool training) final { mode_ = training ? Mode::kTrain : Mode::kEvaluate; }
  void StartPredicting(int64_t token, const Tensor& logits_V) final;

  Measures measures() const final { return MeasuresOf(options_); }
  const Tensor& loss_sums() const final { return loss_sums_; }
  RouterState& router_state() final { return router_state_; }
  std::vector<MoeLayer*> moe_layers() const final { return moe_layers_; }

 protected:
  // One of the stage's parts: layers [begin, end) of the model, an encoder's counted before the
  // decoder's.
  struct Part {
    bool first = false, last = false;  // of the model's parts
    int64_t begin = 0, end = 0;
  };

  // `device` and `ledger` are of the sums.
  ModelStage(const ModelOptions& options, const StagePlacement& placement,
             const ProcessGroup& tensor_group, Device device, MemoryLedger* ledger);

  // Of the stage's layers that have experts, in order: gives them what their routers keep.
  void SetExperts(const std::vector<MoeLayer*>& layers, Device device, MemoryLedger* ledger);

  const ModelOptions& options() const { return options_; }
  const ProcessGroup& tensor_group() const { return tensor_group_; }
  TokenEmbedding* embedding() const { return embedding_.get(); }  // on the first stage, else null
  LmHead* head() const { return head_.get(); }                    // on the last stage, else null
  Part PartOf(int chunk) const;
  const MicroBatch& batch(int microbatch) const { return (*batches_)[microbatch]; }

  bool training() const { return mode_ == Mode::kTrain; }
  LayerContext Context(const WorkItem& item, const Stream& stream) const;
  // The residual stream of so many tokens, and rows of it for this rank.
  TensorSpec HiddenSpec(int64_t tokens) const;
  Tensor AllocateHidden(Arena* arena, const LayerContext& ctx, const char* name) const;
  // Forward, as far as the mode needs it: through layers, and behind the last of the model.
  void RunLayers(const LayerStack& stack, const LayerContext& ctx, const RotaryTables* rotary,
                 const Tensor& x_TH, const Tensor& y_TH, LayerStack::Saved* saved) const;
  void RunHead(const LayerContext& ctx, const Tensor& y_TH, LmHead::Saved* saved) const;

 private:
  enum class Mode { kTrain, kEvaluate, kPredict };

  // Those between the model's ends.
  virtual void AppendInnerParameters(std::vector<Parameter*>* out) = 0;
  // How many micro-batches each chunk is to keep something of.
  virtual void SetSlots(const StageMemory::Slots& slots) = 0;

  std::unique_ptr<VocabParallelEmbedding> MakeTable(const std::string& name, float init_std) const;
  void MakeEmbedding();
  void MakeHead(Device device, MemoryLedger* ledger);
  bool sequence_parallel() const;

  ModelOptions options_;
  StagePlacement placement_;
  ProcessGroup tensor_group_, context_group_;
  std::vector<MoeLayer*> moe_layers_;
  RouterState router_state_;
  // On the first stage; on the last too if it is tied, there as a copy.
  std::unique_ptr<VocabParallelEmbedding> word_embeddings_;
  std::unique_ptr<VocabParallelEmbedding> output_layer_;  // the last stage's, where not tied
  std::unique_ptr<TokenEmbedding> embedding_;
  std::unique_ptr<LmHead> head_;

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

#endif  // MEGATRON_MODELS_MODEL_STAGE_H_
