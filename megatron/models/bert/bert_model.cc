#include "megatron/models/bert/bert_model.h"

#include "megatron/models/stack_stage.h"

namespace megatron {

std::unique_ptr<ModelStage> MakeBertStage(const ModelOptions& options, const StageSetup& setup) {
  Measures measures = {{MeasureKind::kLmLoss, "lm loss", /*is_loss=*/true},
                       {MeasureKind::kLmAccuracy, "lm accuracy", /*is_loss=*/false}};
  if (options.sentence_order_head) {
    measures.push_back({MeasureKind::kSentenceOrderLoss, "sop loss", /*is_loss=*/true});
    measures.push_back({MeasureKind::kSentenceOrderAccuracy, "sop accuracy", /*is_loss=*/false});
  }
  return std::make_unique<StackStage>(options, measures, setup);
}

}  // namespace megatron
