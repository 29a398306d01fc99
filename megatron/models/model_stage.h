// ModelStage: one rank's part of a model as a trainer sees it, whichever kind it is.
//
//   std::unique_ptr<ModelStage> stage = MakeStage(options, setup);
//   ParameterBuffers buffers(stage->parameters(), ...);
//   stage->StartStep({&memory, &data_parallel, &batches, StageMode::kTrain});
//   RunSchedule(...);               // calls Forward and Backward
//   ... stage->loss_sums() ...
//
// This class holds what the stages of all models share: the model's two ends, the parts of it that
// lie here, the memory to work in, the sums of what is measured. A model adds its layers, the
// tensors that cross an edge, and the way through its layers.
//
// Legend: T tokens of the residual stream on this rank, H hidden, V padded vocabulary.
#ifndef MEGATRON_MODELS_MODEL_STAGE_H_
#define MEGATRON_MODELS_MODEL_STAGE_H_

#include <memory>
#include <string>
#include <vector>

#include "megatron/comm/process_group.h"
#include "megatron/layers/float8_history.h"
#include "megatron/layers/kv_cache.h"
#include "megatron/layers/layer_context.h"
#include "megatron/layers/micro_batch.h"
#include "megatron/layers/moe/expert_groups.h"
#include "megatron/layers/moe/moe_layer.h"
#include "megatron/layers/moe/router_state.h"
#include "megatron/layers/rotary.h"
#include "megatron/layers/state_cache.h"
#include "megatron/layers/tensor_grid.h"
#include "megatron/layers/vocab_parallel_embedding.h"
#include "megatron/models/activation_store.h"
#include "megatron/models/bert/sequence_classifier.h"
#include "megatron/models/layer_stack.h"
#include "megatron/models/lm_head.h"
#include "megatron/models/measure.h"
#include "megatron/models/model_options.h"
#include "megatron/models/stage_memory.h"
#include "megatron/models/stage_placement.h"
#include "megatron/models/token_embedding.h"
#include "megatron/pipeline/stage.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

// The place of a stage in the model, and the ranks that it works with.
struct StageSetup {
  // The device and the ledger of the only memory that a stage owns: tables of positions, sums.
  Device device;
  MemoryLedger* ledger = nullptr;
  StagePlacement placement;
  ProcessGroup tensor_group;
  ProcessGroup context_group;  // the ranks that hold the other tokens of each sample
  ExpertGroups expert_groups;
  // The groups of a grid of tensor-parallel ranks; default groups where there is none.
  TensorGridGroups tensor_grid;

  // The ranks over which layers cut heads and the vocabulary.
  const ProcessGroup& layer_group() const {
    return tensor_grid.is_grid() ? tensor_grid.heads() : tensor_group;
  }
};

enum class StageMode {
  kTrain,
  kEvaluate,  // Forward has no dropout and keeps nothing for a backward, which is not called
  // The same as kEvaluate, but on the last stage Forward writes the logits that follow some tokens
  // of a batch in place of the loss.
  kPredict,
};

// Everything that the passes of a step work with. It outlives the step.
struct StepInputs {
  // The arenas to work in; their slots decide how many micro-batches may be in flight.
  StageMemory* memory = nullptr;
  // The owner of the parameters' memory; null: the memory is there all the time.
  WeightBlocks* blocks = nullptr;
  const std::vector<MicroBatch>* batches = nullptr;  // the step's micro-batches, by number
  StageMode mode = StageMode::kTrain;
  // The inputs of kPredict: the numbers of P tokens in the batch (int32; empty: none), and the
  // place of their logits (fp32 [P, padded vocabulary], whole on every tensor-parallel rank).
  Tensor predicted_P, predicted_logits_PV;
  // Where set, the last stage writes there the loss of each token in kEvaluate, and 1 where its
  // label is the likeliest token, else 0: fp32 [micro-batches, 2, T], T that of each micro-batch.
  Tensor token_scores_M2T;
  // Where set, the last stage writes there the loss of each token of the micro-batch in kTrain, or
  // of each sequence or group that has a class, in the pass that forms the logits: fp32 [T], T at
  // least that of each micro-batch.
  Tensor token_losses_T;
  // Where set, the batch of kPredict has new tokens of sequences that a cache holds.
  const CachedTokens* cached = nullptr;
  // The number of tokens of each sample that layers which drop tokens see in kTrain; 0: all.
  int64_t kept_tokens = 0;
  // Where set, forward passes of kTrain add to it.
  ActivationMeter* activations = nullptr;
  // Where set, forward passes of kTrain raise it (LayerContext::largest_scores_LN).
  Tensor largest_scores_LN;
  // With a cube of tensor-parallel ranks, the micro-batches of its inner layout
  // (LayerContext::inner); null where all ranks have the same samples.
  const std::vector<MicroBatch>* inner_batches = nullptr;
};

class ModelStage : public Stage {
 public:
  // The parameters in Megatron's order. They point into this object.
  std::vector<Parameter*> parameters();
  const StagePlacement& placement() const { return setup_.placement; }
  int64_t padded_vocab_size() const { return options_.padded_vocab_size; }

  // Starts a step. It must be called before the passes of every step, and before their specs are
  // asked for.
  void StartStep(const StepInputs& inputs);

  // The measures of each batch, which the last stage takes.
  const Measures& measures() const { return measures_; }
  // The sums (fp32 [measures, 2]) of the last stage, which adds to each measure's row the sum of
  // weight * value, and that of weight. The caller zeroes them.
  const Tensor& loss_sums() const { return loss_sums_; }
  // Returns the state of the routers; it has none where no layer here has experts.
  RouterState& router_state() { return router_state_; }
  // What the scales of FP8 products are made of; empty unless they are delayed.
  Float8History& float8_history() { return float8_history_; }
  // The names of the weights that FP8 products quantize.
  const std::vector<std::string>& float8_weights() const { return float8_weights_; }
  // Must be called once, when the layers are there, before all else. MakeStage does it.
  void AllocateFloat8History() { float8_history_.Allocate(setup_.device, setup_.ledger); }
  // Counts the choices of the layers of moe_layers() in `load_L2E`; see RouterState.
  void CountExpertLoad(const Tensor& load_L2E);
  const std::vector<MoeLayer*>& moe_layers() const { return moe_layers_; }
  // Returns whether kPredict can take a cache.
  bool TakesCache() const;
  // Returns whether layers of the model, on whatever stage, have states in place of keys and
  // values.
  bool HasStates() const { return options_.transformer.HasStates(); }
  // Returns a cache for this stage's layers: `slots` sequences of up to `capacity` tokens.
  KvCache MakeCache(int64_t slots, int64_t capacity, const Stream& stream,
                    MemoryLedger* ledger) const;
  // Returns one for the states of this stage's layers, which is empty where none has a state.
  StateCache MakeStates(int64_t slots, const Stream& stream, MemoryLedger* ledger) const;

 protected:
  // What the head keeps for backward: one of the two is in use.
  struct HeadSaved : LmHead::Saved {
    SequenceClassifier::Saved classifier;
  };
  // One of the stage's parts: layers [begin, end) of the model, an encoder's counted before the
  // decoder's.
  struct Part {
    bool first = false, last = false;  // whether it is the model's first part, its last
    bool has_mtp = false;              // whether it has the layers of multi-token prediction
    int64_t begin = 0, end = 0;
    bool trains_before = false;  // whether a part before it has parameters to train
    bool has_backward = true;    // whether it or a part before it has
  };

  ModelStage(const ModelOptions& options, const Measures& measures, const StageSetup& setup);

  // Gives `layers`, the stage's layers that have experts in order, what their routers keep.
  void SetExperts(const std::vector<MoeLayer*>& layers);

  // The options, with the stage's history of FP8.
  const ModelOptions& options() const { return options_; }
  const ProcessGroup& tensor_group() const { return setup_.tensor_group; }
  TokenEmbedding* embedding() const {
    return embedding_.get();
  }  // null unless this is the first stage
  Part PartOf(int chunk) const;
  // The numbers of the layers of all parts.
  std::vector<int64_t> Layers() const;
  const MicroBatch& batch(int microbatch) const { return (*step_.batches)[microbatch]; }

  bool training() const { return step_.mode == StageMode::kTrain; }
  LayerContext Context(const WorkItem& item, const Stream& stream) const;
  // The place in host memory of what layers keep; null: they keep it on the device.
  ActivationStore::Slot* OffloadOf(const WorkItem& item) const;
  // This rank's rows of the residual stream of so many tokens.
  TensorSpec HiddenSpec(int64_t tokens) const;
  Tensor AllocateHidden(Arena* arena, const LayerContext& ctx, const char* name) const;
  // Do what the mode needs of a forward pass: through layers, and behind the model's last layer.
  void RunLayers(const LayerStack& stack, const LayerContext& ctx, const RotaryTables* rotary,
                 const Tensor& x_TH, const Tensor& y_TH, LayerStack::Saved* saved,
                 ActivationStore::Slot* offload = nullptr) const;
  void RunHead(const LayerContext& ctx, const Tensor& y_TH, HeadSaved* saved) const;
  // Goes back through the head, and through what it put off (lm_head.h).
  void RunHeadBack(const LayerContext& ctx, const Tensor& dy_TH, HeadSaved* saved) const;
  void RunHeadBackWeight(const LayerContext& ctx, const HeadSaved& saved) const;
  // Returns whether forward passes write the loss.
  bool has_loss() const { return step_.mode != StageMode::kPredict; }
  // Returns whether this stage has the layers of multi-token prediction.
  bool has_mtp() const {
    return options_.mtp_num_layers > 0 && setup_.placement.mtp_stage() == setup_.placement.stage;
  }
  // The word table; null unless this is one of StagePlacement::StagesWithWords.
  VocabParallelEmbedding* word_embeddings() const { return word_embeddings_.get(); }
  // The output matrix of the last stage, which may be the word table.
  Parameter* output_matrix() const {
    return &(output_layer_ ? output_layer_ : word_embeddings_)->weight();
  }

 private:
  // Appends the parameters between the model's ends.
  virtual void AppendInnerParameters(std::vector<Parameter*>* out) = 0;
  // Makes room for what each chunk keeps of as many micro-batches as it has slots.
  virtual void SetSlots(const StageMemory::Slots& slots) = 0;

  std::unique_ptr<VocabParallelEmbedding> MakeTable(const std::string& name, float init_std) const;
  int64_t HiddenColumns() const;  // columns of the residual stream that this rank holds
  void MakeEmbedding();
  void MakeHead();
  void MakeLmHead();
  bool sequence_parallel() const;

  ModelOptions options_;
  Measures measures_;
  StageSetup setup_;
  std::vector<MoeLayer*> moe_layers_;
  RouterState router_state_;
  Float8History float8_history_;
  std::vector<std::string> float8_weights_;
  // The embedding of the first stage, or a copy of it.
  std::unique_ptr<VocabParallelEmbedding> word_embeddings_;
  std::unique_ptr<VocabParallelEmbedding> output_layer_;  // the last stage's, where not tied
  std::unique_ptr<TokenEmbedding> embedding_;
  // The last stage has one of the two.
  std::unique_ptr<LmHead> head_;
  std::unique_ptr<SequenceClassifier> classifier_;

  Buffer loss_buffer_;
  Tensor loss_sums_;
  StepInputs step_;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_MODEL_STAGE_H_
