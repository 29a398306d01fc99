// TrainedStage: one rank's part of a model as a trainer sees it, whichever model it is.
//
//   std::unique_ptr<TrainedStage> stage = MakeStage(options, {}, groups.tensor, ...);
//   ParameterBuffers buffers(stage->parameters(), ...);
//   stage->SetMemory(&memory);      // arenas, as large as a step on the meta device says
//   stage->SetBatches(&batches);
//   RunSchedule(...);               // calls Forward and Backward
//   ... stage->loss_sums() ...
#ifndef MEGATRON_MODELS_TRAINED_STAGE_H_
#define MEGATRON_MODELS_TRAINED_STAGE_H_

#include <cstdint>
#include <vector>

#include "megatron/comm/process_group.h"
#include "megatron/layers/micro_batch.h"
#include "megatron/layers/moe/moe_layer.h"
#include "megatron/layers/moe/router_state.h"
#include "megatron/models/measure.h"
#include "megatron/models/stage_memory.h"
#include "megatron/pipeline/schedule.h"
#include "megatron/pipeline/stage.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/tensor.h"
#include "megatron/tensor/weight_blocks.h"

namespace megatron {

// Which parts of the model a rank holds, of stages * chunks.
struct StagePlacement {
  int stage = 0;
  int stages = 1;
  int chunks = 1;
  PartOrder order = PartOrder::kRoundRobin;
  // Layers of each part of the model, in order; an encoder's come before the decoder's. Empty: cut
  // evenly; validation refuses what doesn't divide.
  std::vector<int64_t> layers;

  bool first() const { return stage == 0; }            // holds the embedding
  bool last() const { return stage == last_stage(); }  // holds the head
  int last_stage() const { return PlaceOf(order, stages, stages * chunks - 1).stage; }
};

class TrainedStage : public Stage {
 public:
  // In Megatron's order. They point into this object.
  virtual std::vector<Parameter*> parameters() = 0;

  virtual const StagePlacement& placement() const = 0;
  virtual int64_t padded_vocab_size() const = 0;

  // The ranks that hold the other tokens of each sample; without it this one has all.
  virtual void SetContextGroup(const ProcessGroup& group) = 0;
  // The arenas to work in; they decide how many micro-batches may be in flight.
  virtual void SetMemory(StageMemory* memory) = 0;
  // The micro-batches of the step, by number. Both must outlive the step.
  virtual void SetBatches(const std::vector<MicroBatch>* batches) = 0;
  // Who has the parameters' memory, if it is not there all the time; outlives the stage's use.
  virtual void SetBlocks(WeightBlocks* blocks) = 0;
  // Off: Forward has no dropout and keeps nothing for a backward, which is not called.
  virtual void set_training(bool training) = 0;
  // Until the next set_training: as without training, but in place of the loss Forward writes on
  // the last stage the logits that follow token `token` of a batch (fp32 [padded vocabulary], the
  // whole of it on every tensor-parallel rank).
  virtual void StartPredicting(int64_t token, const Tensor& logits_V) = 0;

  // What the last stage measures of each batch.
  virtual Measures measures() const = 0;
  // fp32 [measures, 2] on the last stage, which adds to it: the sum of weight * value, and that of
  // weight. The caller zeroes it.
  virtual const Tensor& loss_sums() const = 0;
  // Empty where no layer here has experts.
  virtual RouterState& router_state() = 0;
  virtual std::vector<MoeLayer*> moe_layers() const = 0;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_TRAINED_STAGE_H_
