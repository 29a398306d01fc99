#include "megatron/models/gpt/gpt_model.h"

#include <iterator>

#include "glog/logging.h"
#include "megatron/layers/micro_batch.h"
#include "megatron/models/stack_stage.h"

namespace megatron {

std::unique_ptr<ModelStage> MakeGptStage(const ModelOptions& options, const StageSetup& setup) {
  // Megatron's names.
  constexpr const char* kMtp[] = {"mtp_1 loss", "mtp_2 loss", "mtp_3 loss", "mtp_4 loss"};
  static_assert(std::size(kMtp) == kMostMtpDepths);
  Measures measures = {{MeasureKind::kLmLoss, "lm loss", /*is_loss=*/true}};
  CHECK_LE(options.mtp_num_layers, kMostMtpDepths);
  for (int64_t depth = 0; depth < options.mtp_num_layers; ++depth) {
    measures.push_back(
        {MeasureKind::kMtpLoss, kMtp[depth], /*is_loss=*/true,
         double{options.mtp_loss_scaling_factor} / static_cast<double>(options.mtp_num_layers)});
  }
  return std::make_unique<StackStage>(options, measures, setup);
}

}  // namespace megatron
