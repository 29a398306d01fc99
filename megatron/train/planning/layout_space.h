// The layouts of a model on a number of ranks: every way to divide the ranks over the axes, and in
// each every way to cut experts, micro-batches and pipeline ranks, to recompute and to share out.
//
//   LayoutSpace space(resolved, /*ranks=*/1024, /*domain=*/8, /*ranks_of_host=*/8, {0});
//   space.VisitAll([&](const LayoutAxes& axes) -> absl::StatusOr<bool> { ... return true; });
#ifndef MEGATRON_TRAIN_PLANNING_LAYOUT_SPACE_H_
#define MEGATRON_TRAIN_PLANNING_LAYOUT_SPACE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/optim/batch_size_schedule.h"
#include "megatron/plan/tensor_grid_traffic.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/planning/layout_axes.h"

namespace megatron {

// A rule, and how many divisions or layouts it has left out.
struct PrunedLayouts {
  std::string rule;
  int64_t count = 0;
};

// The grids of tensor-parallel ranks that are looked at.
struct GridRules {
  std::function<bool(const PlanGrid& grid)> allows;  // null: there are none
  bool keeps_larger = false;                         // also those on which a rank receives more
};

// What is visited of a layout; returns whether to go on.
using LayoutVisit = absl::FunctionRef<absl::StatusOr<bool>(const LayoutAxes&)>;

class LayoutSpace {
 public:
  // Expects a configuration with its computed fields, which must live as long as the space. Fast
  // links join `domain` ranks, which tensor parallelism does not leave; `ranks_of_host` of them are
  // where instances lie. `host_fractions` are the parts of the optimizer's states that may
  // lie on the host, ascending from 0. Of GPipe and ZB-V the one that is given as `schedule` is
  // there.
  LayoutSpace(const config::PretrainConfig& resolved, int64_t ranks, int64_t domain,
              int64_t ranks_of_host, std::vector<double> host_fractions,
              PlanSchedule schedule = PlanSchedule::kOneForwardOneBackward, GridRules grids = {});

  // Returns the number of runs of data-parallel ranks of which each lies on one host: as few as can
  // be; 1 where none of several ranks does, or where all ranks are one.
  int64_t HostsOf(const LayoutAxes& axes) const;

  // Visits the layouts that the configuration's sizes allow, always in the same order.
  absl::Status VisitAll(LayoutVisit visit);

  // What the visits have found: the ways to divide the ranks over the tensor, context, pipeline and
  // data axes, and those of them that rules have left out.
  int64_t divisions() const { return divisions_; }
  std::vector<PrunedLayouts> pruned() const;

 private:
  bool IsPossible(const LayoutAxes& axes);
  bool AllowsTensor(int64_t ranks) const;
  // Returns the grids of so many tensor-parallel ranks, within the domain.
  std::vector<PlanGrid> GridsWithin(int64_t ranks) const;
  // Returns whether a rank of the grid receives more bytes than one of as many along one dim, if
  // these can be.
  bool GridSendsMore(const LayoutAxes& axes, const PlanGrid& grid) const;
  // Returns whether a hybrid model has layers with that letter.
  bool HasLayers(char letter) const;
  bool AllowsStates(int64_t ranks) const;
  bool CanExchangeHeads(const LayoutAxes& axes, int64_t ranks) const;
  // Returns whether attention in chunks, if it is written, allows this many context-parallel ranks.
  bool CanCutChunks(int64_t context) const;
  absl::StatusOr<bool> VisitPipelines(LayoutAxes axes, LayoutVisit visit);
  absl::StatusOr<bool> VisitUnevenPipelines(LayoutAxes axes, LayoutVisit visit);
  absl::StatusOr<bool> VisitEncoderStages(LayoutAxes axes, LayoutVisit visit);
  absl::StatusOr<bool> VisitSchedules(LayoutAxes axes, LayoutVisit visit);
  absl::StatusOr<bool> VisitBatches(LayoutAxes axes, LayoutVisit visit);
  absl::StatusOr<bool> VisitRows(LayoutAxes axes, LayoutVisit visit);
  absl::StatusOr<bool> VisitGrids(LayoutAxes axes, LayoutVisit visit);
  absl::StatusOr<bool> VisitContexts(LayoutAxes axes, LayoutVisit visit);
  absl::StatusOr<bool> VisitExperts(LayoutAxes axes, LayoutVisit visit);
  absl::StatusOr<bool> VisitOrders(LayoutAxes axes, LayoutVisit visit);
  absl::StatusOr<bool> VisitKept(LayoutAxes axes, LayoutVisit visit);
  absl::StatusOr<bool> VisitInstances(LayoutAxes axes, LayoutVisit visit);
  absl::StatusOr<bool> VisitHosts(LayoutAxes axes, LayoutVisit visit);

  const config::ModelConfig& model_;
  const int64_t layers_;
  const bool has_encoder_;
  // Tokens of a sample of the stack that has most of them.
  const int64_t length_;
  const std::vector<BatchSizeStep> batch_sizes_;  // empty: there is one
  const config::RecomputeConfig& recompute_;
  const int64_t samples_;
  const int64_t ranks_;
  const int64_t domain_;
  const int64_t ranks_of_host_;
  const std::vector<double> host_fractions_;
  const PlanSchedule schedule_;
  const GridRules grids_;
  const LayerMatrices matrices_;
  const int element_bytes_;
  int64_t divisions_ = 0;
  int64_t across_domains_ = 0;
  int64_t indivisible_ = 0;
  int64_t short_ = 0;
  int64_t larger_grids_ = 0;  // layouts
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PLANNING_LAYOUT_SPACE_H_
