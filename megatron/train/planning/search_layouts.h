// Finds the fastest layouts of a model on a number of ranks, by prediction.
//
//   MEGATRON_ASSIGN_OR_RETURN(const LayoutSearch search,
//                             SearchLayouts(config, vocab_size, planner, {/*ranks=*/1024}));
//   search.best[0].config;  // the configuration, as a user would write it
//
// Every division of the ranks into tensor-, context-, pipeline- and data-parallel ones is looked
// at, and in each every way to cut experts, micro-batches and pipeline ranks, to recompute, to
// share out the optimizer, gradients and weights, and to leave the optimizer's states on the host.
// Where none of these fits, each is looked at with the activations of all layers on the host, then
// with attention in chunks whose queries, keys and values lie there, then with both; and then the
// same with the optimizer's states in files, where the configuration or the hardware has a folder.
// They are ordered by the predicted time, and looked at from the fastest on. One that doesn't fit
// into memory, by an estimate, is left out; a layout is taken only if the trainer's own rules
// accept it and its plan on the meta device fits. The result follows from the arguments.
#ifndef MEGATRON_TRAIN_PLANNING_SEARCH_LAYOUTS_H_
#define MEGATRON_TRAIN_PLANNING_SEARCH_LAYOUTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/plan/plan_facts.pb.h"
#include "megatron/plan/step_prediction.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/planning/layout_axes.h"
#include "megatron/train/planning/layout_predictor.h"
#include "megatron/train/planning/layout_space.h"
#include "megatron/train/planning/planned_run.h"

namespace megatron {

// Returns whether a layout may be taken.
using LayoutFilter = std::function<bool(const LayoutAxes& axes)>;

struct SearchOptions {
  int64_t ranks = 1;
  double memory_bytes = 0;     // a rank's limit; 0: DefaultMemoryLimit
  double host_bytes = 0;       // a rank's limit of host memory; 0: DefaultHostLimit
  bool offloads = true;        // whether states and activations may lie on the host of a GPU
  bool shares_memory = false;  // whether more ranks would have no more memory in all
  int best = 5;                // the most layouts to return
  LayoutFilter allows;         // null: all layouts may be taken
};

// The share of the hardware's memory that is left to what isn't planned: CUDA's context, NCCL.
inline constexpr double kMemoryMargin = 0.05;

// Returns the bytes of the hardware's memory without the margin.
double DefaultMemoryLimit(const Hardware& hardware);

// The share of the host's memory that is left to the program, its data and the system.
inline constexpr double kHostMargin = 0.1;

// Returns the bytes of a GPU's share of its host's memory without the margin; 0 if it is unknown.
double DefaultHostLimit(const Hardware& hardware);

// Returns whether layouts with the optimizer's states on the host can be predicted.
bool KnowsHost(const Planner& planner);

struct FoundLayout {
  LayoutAxes axes;
  config::PretrainConfig config;  // without its computed fields
  PlannedRun run;
  StepPrediction prediction;  // its seconds are those of ExplainStep()
  // The most that any rank holds, and has on the host and in files, planned on the meta device.
  int64_t memory_bytes = 0;
  int64_t host_bytes = 0;
  int64_t file_bytes = 0;  // those of its file of optimizer states
};

struct LayoutSearch {
  int64_t divisions = 0;  // ways to divide the ranks over four axes
  std::vector<PrunedLayouts> pruned_divisions;
  int64_t layouts = 0;  // in the divisions that are left, without those that aren't allowed
  int64_t not_allowed = 0;
  int64_t too_large = 0;  // among those that were looked at
  int64_t refused = 0;    // by the trainer's rules or by the exact plan, among those tried
  std::string first_refusal;
  // The layouts by time; with times within 0.1 % the simpler ones come first. Those that divide the
  // ranks alike have one place, the fastest one's. If these are too few within 1.5 times the
  // fastest one's time, others fill up; of those that differ in what is recomputed or shared out
  // alone, a slower one is there only if it needs less memory.
  std::vector<FoundLayout> best;
  bool needs_host = false;  // nothing fits but with the optimizer's states on the host
  bool needs_activations_on_host = false;  // nothing fits but with activations there
  bool needs_attention_on_host = false;    // nothing fits but with attention in chunks there
  bool needs_files = false;                // nothing fits but with the optimizer's states in files
  // If nothing fits, the layout that needs the least memory.
  LayoutAxes least;
  double least_bytes = 0;
  double least_host_bytes = 0;
  double least_file_bytes = 0;
};

// Expects a configuration as its text has it, without computed fields; its own layout is passed
// over, its global batch size and its sequence length stay. Returns kInvalidArgument where
// train.global_batch_size isn't set, where the configuration is wrong in any layout, or where
// PredictStep refuses the model or the precision; kUnimplemented for what no search knows. A
// search that finds nothing returns no layouts.
absl::StatusOr<LayoutSearch> SearchLayouts(const config::PretrainConfig& config, int64_t vocab_size,
                                           const Planner& planner, const SearchOptions& options);

// Returns the smallest number of ranks among `options.ranks` times 2, 4, 8, ... that some layout
// fits on; 0 if none up to a million does.
absl::StatusOr<int64_t> RanksThatFit(const config::PretrainConfig& config, int64_t vocab_size,
                                     const Planner& planner, const SearchOptions& options);

// Returns why the step of `other` takes longer than that of `first`, by the greatest difference
// between their parts: "pipeline bubble +0.31 s, 11 % of its step"; and how much less the other
// parts take, if that is much.
std::string WhyItLoses(const StepSeconds& first, const StepSeconds& other);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PLANNING_SEARCH_LAYOUTS_H_
