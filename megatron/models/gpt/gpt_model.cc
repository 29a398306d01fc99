#include "megatron/models/gpt/gpt_model.h"

#include "megatron/models/stack_stage.h"

namespace megatron {

std::unique_ptr<ModelStage> MakeGptStage(const ModelOptions& options, const StageSetup& setup) {
  const Measures measures = {{MeasureKind::kLmLoss, "lm loss", /*is_loss=*/true}};
  return std::make_unique<StackStage>(options, measures, setup);
}

}  // namespace megatron
