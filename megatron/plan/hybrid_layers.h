// The layers of a hybrid model (docs/hybrid.md), each of which has one branch, and what a branch
// that hands a state from token to token does between its two projections.
#ifndef MEGATRON_PLAN_HYBRID_LAYERS_H_
#define MEGATRON_PLAN_HYBRID_LAYERS_H_

#include <array>
#include <cstdint>
#include <string>

#include "megatron/plan/measured_kernels.h"
#include "megatron/plan/model_costs.h"
#include "megatron/plan/plan_facts.pb.h"

namespace megatron {

enum PlanBranch { kMambaBranch, kDeltaBranch, kAttentionBranch, kMlpBranch, kExpertsBranch };
inline constexpr int kPlanBranches = 5;

// The number of layers with each branch.
using BranchCounts = std::array<int64_t, kPlanBranches>;

// Returns those of the layers with these letters, all of which are letters of layers.
BranchCounts CountBranches(const std::string& letters);
void AddBranches(const BranchCounts& counts, BranchCounts* sum);
// Returns the number of all of them.
int64_t AllBranches(const BranchCounts& counts);
// Returns whether there is no other letter than those of layers.
bool AreLettersOfLayers(const std::string& letters);

// Tokens of a chunk of a recurrence.
inline constexpr int64_t kRecurrenceChunk = 64;

// One token's between the projections of a layer. All counts are those of the ranks that the
// layer's sizes are of.
struct RecurrenceCosts {
  double packed = 0;     // channels of the first projection
  double convolved = 0;  // those of them that the convolution takes
  double outputs = 0;    // channels that the recurrence and the norm give
  double states = 0;     // numbers of the states
  // Pairs of a multiplication and an addition, as the products within chunks of tokens and those
  // with states take them (ops/state_space.h, ops/gated_delta.h). In backward states are found
  // again.
  double forward = 0, backward = 0;
  double vectors = 0;  // parameters that belong to no product
};

// Returns whether the branch normalizes all groups of heads together. Ranks that share out the
// groups then add up so many bytes in each pass.
bool NormsAllGroups(PlanBranch branch, const PlanModel& model);
inline double NormSumBytes(double tokens) { return 4 * tokens; }

// Sets the sizes of layers with a state on one of so many tensor-parallel ranks.
void SetStateSizes(const PlanModel& model, double ranks, LayerShape* layer);
// Returns the costs of a branch that has a state.
RecurrenceCosts RecurrenceOf(PlanBranch branch, const LayerShape& layer);
// Returns the shape by which the recurrence of such a branch is measured.
KernelShape RecurrenceKernel(PlanBranch branch, const LayerShape& layer, const std::string& pass);
// Returns the costs of one group of heads whose recurrence has that shape.
RecurrenceCosts CostsOfRecurrenceKernel(const KernelShape& shape);

}  // namespace megatron

#endif  // MEGATRON_PLAN_HYBRID_LAYERS_H_
