// One way to divide a model and its samples over ranks, and the configuration that says so.
#ifndef MEGATRON_TRAIN_PLANNING_LAYOUT_AXES_H_
#define MEGATRON_TRAIN_PLANNING_LAYOUT_AXES_H_

#include <cstdint>
#include <string>

#include "megatron/plan/step_prediction.h"
#include "megatron/train/config/config.pb.h"

namespace megatron {

// What data-parallel ranks share out, each besides what is above it.
enum class SharedOut { kNothing, kOptimizer, kGradients, kWeights };

struct LayoutAxes {
  int64_t tensor = 1;
  PlanGrid grid;  // that of the tensor-parallel ranks
  int64_t context = 1;
  int64_t pipeline = 1;
  int64_t chunks = 1;  // the number of a pipeline rank's chunks
  PlanSchedule schedule = PlanSchedule::kOneForwardOneBackward;
  int64_t data = 1;
  bool data_is_outermost = false;  // ranks of a pipeline are nearer to each other than copies
  int64_t expert = 1;
  int64_t expert_tensor = 1;
  int64_t micro_batch = 1;
  bool is_sequence_parallel = false;
  PlanContext context_form = PlanContext::kRing;
  int64_t context_team = 1;  // ranks of a team of PlanContext::kTeams
  bool ends_count = false;   // embedding and loss count as a layer each in the pipeline
  int64_t last_layers = 0;   // those of the last pipeline stage; 0: as many as the others have
  // Pipeline stages that a T5's encoder has for itself; 0: parts are even wherever it ends.
  int64_t encoder_stages = 0;
  PlanRecompute recompute = PlanRecompute::kNone;
  SharedOut shared_out = SharedOut::kNothing;
  int64_t instances = 1;  // runs of ranks over which that is shared out
  bool instances_share_states = false;
  int64_t ranks_per_host = 0;          // ranks of a host of hierarchical collectives; 0: none are
  bool deduplicates_dispatch = false;  // whether tokens' rows go to these hosts once
  int64_t hosts = 1;                   // several have all weights in secondary shards
  bool quantizes_weights = false;      // whether gathers over all ranks carry codes
  bool quantizes_gradients = false;    // whether reductions carry codes
  double host_fraction = 0;            // part of the optimizer's states in host memory
  bool states_in_files = false;        // whether that part lies in files that are named
  bool weights_on_host = false;        // whether weights are there too; host_fraction is 1 then
  bool activations_on_host = false;    // whether what all layers keep for backward is there
  // Tokens of a chunk of attention, whose queries, keys and values are there; 0: attention is as
  // the configuration has it.
  int64_t attention_chunk_on_host = 0;

  int64_t ranks() const { return tensor * context * pipeline * data; }
  // Returns how many ways of dividing are in use.
  int count() const;
};

// The layers of the first part of a pipeline, of each inner one, and of the last.
struct PartSizes {
  int64_t first = 0;
  int64_t inner = 0;
  int64_t last = 0;
};

// Returns those of `layers` layers, which the layout's pipeline can share, without encoder_stages.
PartSizes SizesOfParts(const LayoutAxes& axes, int64_t layers);

// Returns how many of `layers` layers the largest part has, without encoder_stages.
int64_t LayersOfLargestPart(const LayoutAxes& axes, int64_t layers);

// Returns whether gradients are reduced, and weights gathered, beside other work: as the
// configuration says, else on GPUs without CUDA graphs.
bool LayoutOverlaps(const config::PretrainConfig& config, bool is_gpu);

// Sets the device that a layout is for, where the configuration leaves it to the machine that it is
// planned on.
void SetPlannedDevice(bool is_gpu, config::PretrainConfig* config);

// Writes the layout into a configuration, whose computed fields aren't set. Fields of another
// layout, and those that have no effect in this one, are cleared.
void ApplyLayout(const LayoutAxes& axes, bool is_gpu, config::PretrainConfig* config);

// Returns the configuration as it is checked before it has a layout: in this one, of a single rank,
// without the section `parallel` and other fields that only some layouts take, each of which is
// checked with them. Compressed gradients, which need ranks to send them, are checked with two
// ranks and with what `parallel` says of sent gradients. Expects a train.global_batch_size.
config::PretrainConfig WithoutRanks(const config::PretrainConfig& config, const LayoutAxes& one,
                                    bool is_gpu);

// Returns which parts of the layout change the loss, as a sentence; empty if none does.
std::string DescribeLosses(const LayoutAxes& axes);

// Returns "tp 8 sp, pp 16 x 3, dp 8, micro-batch 1, recompute full, ZeRO-1".
std::string DescribeLayout(const LayoutAxes& axes);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PLANNING_LAYOUT_AXES_H_
