// GeneratorSetup: what a program that generates text has of the model.
#ifndef MEGATRON_MODELS_GENERATOR_SETUP_H_
#define MEGATRON_MODELS_GENERATOR_SETUP_H_

#include "megatron/comm/process_group.h"
#include "megatron/pipeline/stage_plan.h"

namespace megatron {

class ModelStage;
class WeightBlocks;
struct StageMemory;

// This rank's part of the model, and the memory and the ranks that it works with.
struct GeneratorSetup {
  ModelStage* stage = nullptr;
  StageMemory* memory = nullptr;
  WeightBlocks* blocks = nullptr;  // the same as in StepInputs
  ProcessGroup pipeline;           // the ranks that hold the stages of the model
};

// Returns the plan of this rank for the forward pass of one batch.
StagePlan PlanPrediction(const GeneratorSetup& setup);

}  // namespace megatron

#endif  // MEGATRON_MODELS_GENERATOR_SETUP_H_
