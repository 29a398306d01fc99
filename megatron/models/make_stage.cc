#include "megatron/models/make_stage.h"

#include "glog/logging.h"
#include "megatron/models/bert/bert_model.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/models/t5/t5_model.h"

namespace megatron {
namespace {

std::unique_ptr<ModelStage> MakeStageOfKind(const ModelOptions& options, const StageSetup& setup) {
  switch (options.kind) {
    case ModelKind::kGpt:
      return MakeGptStage(options, setup);
    case ModelKind::kBert:
      return MakeBertStage(options, setup);
    case ModelKind::kT5:
      return MakeT5Stage(options, setup);
  }
  LOG(FATAL) << "unknown kind of model " << static_cast<int>(options.kind);
}

}  // namespace

std::unique_ptr<ModelStage> MakeStage(const ModelOptions& options, const StageSetup& setup) {
  std::unique_ptr<ModelStage> stage = MakeStageOfKind(options, setup);
  stage->AllocateFloat8History();
  return stage;
}

}  // namespace megatron
