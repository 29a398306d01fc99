#include "megatron/models/bert/bert_model.h"

#include "megatron/models/stack_stage.h"

namespace megatron {

std::unique_ptr<ModelStage> MakeBertStage(const ModelOptions& options, const StageSetup& setup) {
  if (options.num_classes > 0) {
    // The names are Megatron's.
    const Measures measures = {{MeasureKind::kLmLoss, "lm loss", /*is_loss=*/true},
                               {MeasureKind::kClassAccuracy, "accuracy", /*is_loss=*/false}};
    return std::make_unique<StackStage>(options, measures, setup);
  }
  Measures measures = {{MeasureKind::kLmLoss, "lm loss", /*is_loss=*/true},
                       {MeasureKind::kLmAccuracy, "lm accuracy", /*is_loss=*/false}};
  if (options.sentence_order_head) {
    measures.push_back({MeasureKind::kSentenceOrderLoss, "sop loss", /*is_loss=*/true});
    measures.push_back({MeasureKind::kSentenceOrderAccuracy, "sop accuracy", /*is_loss=*/false});
  }
  ModelOptions with_head = options;
  with_head.masked_lm_transform = with_head.output_bias = true;
  return std::make_unique<StackStage>(with_head, measures, setup);
}

}  // namespace megatron
