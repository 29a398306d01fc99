// How many micro-batches the stages of a pipeline have in flight, as the schedule's plans say.
#ifndef MEGATRON_TRAIN_PLANNING_PIPELINE_SLOTS_H_
#define MEGATRON_TRAIN_PLANNING_PIPELINE_SLOTS_H_

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "megatron/train/config/config.pb.h"
#include "megatron/train/planning/layout_axes.h"

namespace megatron {

// Sets the batch to so many micro-batches of each data-parallel rank.
void SetMicroBatches(int64_t count, config::PretrainConfig* config);

class PipelineSlots {
 public:
  struct Stage {
    std::vector<double> counts;    // micro-batches in flight, by chunk
    std::vector<double> deferred;  // those whose weights' gradients are to come
    double edges = 0;              // bytes received, if a rank has whole samples, one at a time
  };

  // Expects a configuration that is valid in some layout, without its computed fields.
  PipelineSlots(const config::PretrainConfig& config, int64_t vocab_size, bool is_gpu);

  // Returns the stages by their number: the first, the second and the last one, or all where stages
  // have different kinds or numbers of layers.
  const std::map<int64_t, Stage>& Of(const LayoutAxes& axes, int64_t micro_batches);
  // Returns how many micro-batches have as many in flight as `micro_batches` have.
  int64_t Enough(const LayoutAxes& axes, int64_t micro_batches) const;
  // Returns whether all layers of the model are alike.
  bool has_equal_layers() const { return has_equal_layers_; }

 private:
  std::map<int64_t, Stage> Plan(const config::PretrainConfig& config, bool all_stages) const;
  bool HasEqualStages(const LayoutAxes& axes) const;

  const config::PretrainConfig config_;
  const int64_t vocab_size_;
  const bool is_gpu_;
  const double element_bytes_;  // the size of an activation
  const bool has_equal_layers_;
  std::map<std::array<int64_t, 7>, std::map<int64_t, Stage>> schedules_;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PLANNING_PIPELINE_SLOTS_H_
