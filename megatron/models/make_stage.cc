#include "megatron/models/make_stage.h"

#include "megatron/models/gpt_stage.h"

namespace megatron {

std::unique_ptr<TrainedStage> MakeStage(const GptOptions& options, const StagePlacement& placement,
                                        const ProcessGroup& tensor_group, Device device,
                                        MemoryLedger* ledger, const ExpertGroups& expert_groups) {
  return std::make_unique<GptStage>(options, placement, tensor_group, device, ledger,
                                    expert_groups);
}

}  // namespace megatron
