#include "megatron/models/t5/t5_model.h"

#include "megatron/models/t5/t5_stage.h"

namespace megatron {

std::unique_ptr<ModelStage> MakeT5Stage(const ModelOptions& options, const StageSetup& setup) {
  const Measures measures = {
      {MeasureKind::kLmLoss, "lm loss", /*is_loss=*/true},
      {MeasureKind::kExactSpanAccuracy, "exact span accuracy", /*is_loss=*/false}};
  return std::make_unique<T5Stage>(options, measures, setup);
}

}  // namespace megatron
