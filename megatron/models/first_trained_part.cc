#include "megatron/models/first_trained_part.h"

#include <memory>

#include "megatron/models/make_stage.h"

namespace megatron {
namespace {

bool IsTrained(ModelStage* part, const NamePatterns& frozen) {
  for (const Parameter* parameter : part->parameters()) {
    if (!frozen.Match(parameter->name)) return true;
  }
  return false;
}

}  // namespace

// Each part is made as a stage of its own, without memory.
int FirstTrainedPart(const ModelOptions& options, const StagePlacement& placement,
                     const NamePatterns& frozen) {
  StagePlacement part = placement;
  part.stages = placement.parts();
  part.chunks = 1;
  part.order = PartOrder::kRoundRobin;
  for (part.stage = 0; part.stage + 1 < part.stages; ++part.stage) {
    const std::unique_ptr<ModelStage> stage =
        MakeStage(options, {{DeviceType::kMeta}, /*ledger=*/nullptr, part});
    if (IsTrained(stage.get(), frozen)) break;
  }
  return part.stage;
}

}  // namespace megatron
