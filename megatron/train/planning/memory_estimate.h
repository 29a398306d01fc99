// Estimates the memory of a layout fast enough to look at thousands of them.
//
// Stages of few layers are planned on the meta device, as a run is, once for all layouts that cut a
// layer and its samples in the same way. Bytes are linear in layers and in micro-batches in flight,
// whose number a plan of the schedule gives. So the estimate follows the code. What data-parallel
// ranks share out is divided by their number. Stages of a T5 and of a hybrid model, which have
// several kinds of layers, of ZB-V, whose first stage has both ends of the model, and those with
// optimizer.freeze, which names layers, are planned as they are.
//
//   MemoryEstimator estimator(config, vocab_size, /*is_gpu=*/true);
//   MEGATRON_ASSIGN_OR_RETURN(const double bytes, estimator.Bytes(axes));
#ifndef MEGATRON_TRAIN_PLANNING_MEMORY_ESTIMATE_H_
#define MEGATRON_TRAIN_PLANNING_MEMORY_ESTIMATE_H_

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/planning/layout_axes.h"
#include "megatron/train/planning/pipeline_slots.h"

namespace megatron {

// Bytes of a rank, on its device, in its host's memory and in files of optimizer states.
struct MemoryNeeds {
  double device = 0;
  double host = 0;
  double files = 0;
};

class MemoryEstimator {
 public:
  // Expects a configuration that is valid in some layout, without its computed fields;
  // train.global_batch_size is set. `vocab_size` is the tokenizer's.
  MemoryEstimator(const config::PretrainConfig& config, int64_t vocab_size, bool is_gpu);

  // Returns the most that a rank holds on its device, the most that one has on the host, and the
  // most in files: of the first, the second and the last stage, or of all where stages have
  // different kinds of layers.
  // Expects a layout that the configuration's sizes allow. Where a part of the optimizer's states
  // lies on the host, it really ends with a whole parameter: the device then holds less.
  absl::StatusOr<MemoryNeeds> Bytes(const LayoutAxes& axes);

 private:
  // Bytes of one rank by what they depend on.
  struct StageBytes {
    double weights = 0;
    double gradients = 0;
    double optimizer = 0;
    double fixed = 0;     // neither the batch's nor the activations'
    double batches = 0;   // one micro-batch's
    double saved = 0;     // one micro-batch's in flight
    double deferred = 0;  // one micro-batch's whose weights' gradients are to come
    double temporary = 0;
    double window = 0;  // the window of a layer whose activations come from the host or go there
    double host_saved = 0;  // one micro-batch's in flight, in host memory
    double host_temporary = 0;
  };
  // Stages by their place: with one stage the whole model, else the first, an inner and the last.
  using Places = std::vector<StageBytes>;

  // A stage as it is, and what its parts save.
  struct PlannedStage {
    StageBytes bytes;
    std::vector<StageBytes> parts;
  };
  // What a stage holds of a layout that shares nothing out.
  struct Held {
    StageBytes bytes;
    double saved = 0;
    double host_saved = 0;
    double window = 0;
    int64_t mixtures = 0;
  };

  absl::StatusOr<PlannedStage> PlanStageAsItIs(const config::PretrainConfig& config,
                                               int64_t micro_batches, int64_t stage) const;
  absl::StatusOr<const PlannedStage*> StageOf(LayoutAxes axes, int64_t stage);
  absl::StatusOr<Held> HeldBytes(const LayoutAxes& axes, int64_t stage,
                                 const PipelineSlots::Stage& slots);
  absl::StatusOr<Held> HeldByStacks(const LayoutAxes& axes, int64_t stage,
                                    const PipelineSlots::Stage& slots);
  absl::StatusOr<Places> PlanPlaces(LayoutAxes axes, bool is_mixture, int64_t layers) const;
  absl::StatusOr<const Places*> ProbeOf(const LayoutAxes& axes, bool is_mixture, int64_t layers);
  // Returns what a stage at `place` has of many layers of one kind; with_ends: of what is there
  // without layers, too.
  absl::StatusOr<StageBytes> LayersOf(const LayoutAxes& axes, bool is_mixture, size_t place,
                                      int64_t layers, bool with_ends);
  // The same of layers of both kinds, of which the first is a mixture or isn't.
  absl::StatusOr<StageBytes> BothKinds(const LayoutAxes& axes, size_t place, int64_t mixtures,
                                       int64_t dense, bool begins_with_mixture);
  // The bytes of weights and gradients of layers at work, where they are shared out, rounded or
  // come from host memory, and of a bucket's sum of gradients that comes from there, times its
  // shards.
  struct Whole {
    double blocks = 0, sums = 0;
  };
  absl::StatusOr<Whole> WholeBytes(const LayoutAxes& axes, int64_t stage);
  absl::StatusOr<MemoryNeeds> StageTotal(const LayoutAxes& axes, int64_t stage,
                                         const PipelineSlots::Stage& slots);
  double ExpertShare(const LayoutAxes& axes, int64_t mixtures, double weight_bytes) const;
  absl::Status ShareOut(const LayoutAxes& axes, int64_t stage, int64_t mixtures, StageBytes* bytes);

  const config::PretrainConfig config_;
  config::PretrainConfig resolved_;
  const int64_t vocab_size_;
  const bool is_gpu_;
  PipelineSlots slots_;
  bool has_encoder_ = false;
  bool is_hybrid_ = false;
  bool freezes_ = false;           // whether layers differ in what is frozen
  std::vector<bool> is_mixture_;   // by layer
  double weight_bytes_ = 4;        // the size of a weight
  bool rounds_gradients_ = false;  // whether gradients are kept in bf16
  std::map<std::array<int64_t, 18>, Places> probes_;
  std::map<std::array<int64_t, 19>, Whole> whole_;
  std::map<std::array<int64_t, 21>, PlannedStage> stages_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PLANNING_MEMORY_ESTIMATE_H_
