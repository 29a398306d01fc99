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
#include "megatron/tensor/tensor.h"
#include "megatron/train/trainer/step_report.h"

namespace megatron {

class StepMeasures {
 public:
  // The sums of so many sources, where the last stage makes them (SourceLosses::sums_S2).
  struct Sources {
    int64_t count = 0;
    Tensor sums_S2;  // empty on other stages
  };

  // `stage`, `model`, `placement` and `groups` outlive it.
  StepMeasures(ModelStage* stage, const TransformerOptions& model, const StagePlacement& placement,
               const ProcessGroups& groups, const Sources& sources, const Stream& stream,
               MemoryLedger* ledger);

  // Sums over all ranks the sums of the last stage since they were zeroed, and in a step of
  // training those of sources and of the routers. The host has the result after its next wait for
  // the stream, which it makes once in a step.
  void Start(bool training);
  Measured Finish();  // the means
  // Add the losses of sources, and the means of the routers' losses, after Finish().
  void ReportSources(StepReport* report) const;
  void ReportRouterLosses(StepReport* report) const;

 private:
  void SumRouterLosses();
  void SumOverGrid(const Tensor& sums);  // over the grid's ranks that have other samples
  int64_t MoeLayers() const;             // number of layers with experts in the whole model
  int64_t NumMeasures() const;
  // The sums come first in report_: a row for each measure, and one for each source.
  int64_t NumSums() const { return 2 * (NumMeasures() + sources_.count); }

  ModelStage* const stage_;
  const TransformerOptions& model_;
  const StagePlacement& placement_;
  const ProcessGroups& groups_;
  const Sources sources_;
  const Stream stream_;
  Buffer report_;
  HostMirror host_report_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_STEP_MEASURES_H_
