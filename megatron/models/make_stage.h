// The one place that knows which models there are.
#ifndef MEGATRON_MODELS_MAKE_STAGE_H_
#define MEGATRON_MODELS_MAKE_STAGE_H_

#include <memory>

#include "megatron/comm/process_group.h"
#include "megatron/layers/moe/moe_options.h"
#include "megatron/models/model_options.h"
#include "megatron/models/trained_stage.h"
#include "megatron/tensor/memory.h"

namespace megatron {

// `device` and `ledger` are of the only memory that a stage owns: tables of positions, sums.
std::unique_ptr<TrainedStage> MakeStage(const ModelOptions& options,
                                        const StagePlacement& placement,
                                        const ProcessGroup& tensor_group, Device device,
                                        MemoryLedger* ledger,
                                        const ExpertGroups& expert_groups = {});

}  // namespace megatron

#endif  // MEGATRON_MODELS_MAKE_STAGE_H_
