#include "megatron/models/make_stage.h"

#include "megatron/models/stack_stage.h"
#include "megatron/models/t5/t5_stage.h"

namespace megatron {

std::unique_ptr<TrainedStage> MakeStage(const ModelOptions& options,
                                        const StagePlacement& placement,
                                        const ProcessGroup& tensor_group, Device device,
                                        MemoryLedger* ledger, const ExpertGroups& expert_groups) {
  if (options.kind == ModelKind::kT5)
    return std::make_unique<T5Stage>(options, placement, tensor_group, device, ledger);
  return std::make_unique<StackStage>(options, placement, tensor_group, device, ledger,
                                      expert_groups);
}

}  // namespace megatron
