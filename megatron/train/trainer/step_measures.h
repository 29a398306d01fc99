// The means that a step or an evaluation reports: sums of the last stage's head, and of the routers
// of all stages, summed over the ranks.
#ifndef MEGATRON_TRAIN_TRAINER_STEP_MEASURES_H_
#define MEGATRON_TRAIN_TRAINER_STEP_MEASURES_H_

#include <cstdint>

#include "megatron/comm/process_groups.h"
#include "megatron/models/model_options.h"
#include "megatron/models/model_stage.h"
#include "megatron/models/stage_placement.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/train/trainer/step_report.h"

namespace megatron {

class StepMeasures {
 public:
  // `stage`, `model`, `placement` and `groups` outlive it.
  StepMeasures(ModelStage* stage, const TransformerOptions& model, const StagePlacement& placement,
               const ProcessGroups& groups, const Stream& stream, MemoryLedger* ledger);

  // Sums over all ranks the sums of the last stage since they were zeroed, and in a step those of
  // the routers. The host has the result after its next wait for the stream, which it makes once in
  // a step.
  void Start(bool router_losses);
  Measured Finish();  // the means
  // Adds the means of the routers' losses after Finish().
  void ReportRouterLosses(StepReport* report) const;

 private:
  void SumRouterLosses();
  void SumOverGrid(const Tensor& sums);  // over the grid's ranks that have other samples
  int64_t MoeLayers() const;             // number of layers with experts in the whole model
  int64_t NumSums() const;               // number of sums of measures, which come first in report_

  ModelStage* const stage_;
  const TransformerOptions& model_;
  const StagePlacement& placement_;
  const ProcessGroups& groups_;
  const Stream stream_;
  Buffer report_;
  HostMirror host_report_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_STEP_MEASURES_H_
