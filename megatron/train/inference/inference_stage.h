// A rank's part of a trained model, with its weights and the memory to predict in.
#ifndef MEGATRON_TRAIN_INFERENCE_INFERENCE_STAGE_H_
#define MEGATRON_TRAIN_INFERENCE_INFERENCE_STAGE_H_

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/comm/process_groups.h"
#include "megatron/models/generator_setup.h"
#include "megatron/models/model_options.h"
#include "megatron/models/stage_memory.h"
#include "megatron/tensor/memory.h"

namespace megatron {

class ModelStage;

class InferenceStage {
 public:
  // `groups` are this rank's; pipeline stages have about as many layers each. `measure` does on the
  // meta device the largest of what the stage will be used for.
  InferenceStage(const ModelOptions& options, const ProcessGroups& groups,
                 absl::FunctionRef<void(const GeneratorSetup& setup)> measure,
                 MemoryLedger* ledger);
  ~InferenceStage();

  // Returns the bytes that such a stage takes for its weights and its work. It takes none of them.
  static int64_t PlannedBytes(const ModelOptions& options, const ProcessGroups& groups,
                              absl::FunctionRef<void(const GeneratorSetup& setup)> measure);

  // Reads this rank's weights from a checkpoint of any layout.
  absl::Status LoadWeights(const CheckpointReader& reader);

  GeneratorSetup setup();

 private:
  ProcessGroup pipeline_;
  std::unique_ptr<ModelStage> stage_;
  Buffer weights_;
  std::unique_ptr<StageMemory> memory_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_INFERENCE_INFERENCE_STAGE_H_
