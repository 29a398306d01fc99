#include "megatron/plan/hybrid_layers.h"

#include <cmath>
#include <numeric>

namespace megatron {
namespace {

// The letters in the order of PlanBranch.
constexpr char kLetters[] = "MG*-E";

// Names of measured kernels.
constexpr const char* kStateSpace = "state_space";
constexpr const char* kGatedDelta = "gated_delta";

// A token sees half of its chunk on average.
constexpr double kSeen = kRecurrenceChunk / 2.0;

// Within a chunk there is a product of C and B for each group, and one with x for each head;
// forward states are written and read, and in backward they and their gradients.
RecurrenceCosts MambaRecurrence(const LayerShape& layer) {
  const double inner = double(layer.mamba_inner), state = double(layer.mamba_state);
  const double of_groups = double(layer.mamba_groups) * state;
  RecurrenceCosts costs;
  costs.convolved = inner + 2 * of_groups;
  costs.packed = inner + costs.convolved + double(layer.mamba_heads);
  costs.outputs = inner;
  costs.states = inner * state;
  costs.forward = kSeen * (of_groups + inner) + 2 * costs.states;
  costs.backward = kSeen * (3 * of_groups + 2 * inner) + 5 * costs.states;
  costs.vectors = double(MambaVectorWeights(layer));
  return costs;
}

// Within a chunk there are products of keys, and of queries and keys, for each group, and for each
// head a triangular system and a product with what its solution writes. The states are read at keys
// and at queries, and written.
RecurrenceCosts DeltaRecurrence(const LayerShape& layer) {
  const double keys = double(layer.delta_keys), values = double(layer.delta_values);
  RecurrenceCosts costs;
  costs.convolved = 2 * keys + values;
  costs.packed = costs.convolved + values + 2 * double(layer.delta_heads);
  costs.outputs = values;
  costs.states = values * keys / double(layer.delta_key_heads);
  costs.forward = kSeen * 2 * (keys + values) + 3 * costs.states;
  costs.backward = kSeen * (8 * keys + 6 * values) + 9 * costs.states;
  costs.vectors = double(DeltaVectorWeights(layer));
  return costs;
}

}  // namespace

BranchCounts CountBranches(const std::string& letters) {
  BranchCounts counts{};
  for (const char letter : letters) ++counts[std::string(kLetters).find(letter)];
  return counts;
}

void AddBranches(const BranchCounts& counts, BranchCounts* sum) {
  for (int branch = 0; branch < kPlanBranches; ++branch) (*sum)[branch] += counts[branch];
}

int64_t AllBranches(const BranchCounts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

bool AreLettersOfLayers(const std::string& letters) {
  return letters.find_first_not_of(kLetters) == std::string::npos;
}

bool NormsAllGroups(PlanBranch branch, const PlanModel& model) {
  return branch == kMambaBranch && model.mamba_norm_all_groups();
}

void SetStateSizes(const PlanModel& model, double ranks, LayerShape* layer) {
  const auto of_rank = [ranks](double size) { return int64_t(std::ceil(size / ranks)); };
  layer->mamba_inner = of_rank(model.mamba_heads() * model.mamba_head_dim());
  layer->mamba_heads = of_rank(model.mamba_heads());
  layer->mamba_groups = of_rank(model.mamba_groups());
  layer->mamba_state = int64_t(model.mamba_state());
  layer->delta_keys = of_rank(model.delta_key_heads() * model.delta_key_dim());
  layer->delta_values = of_rank(model.delta_value_heads() * model.delta_value_dim());
  layer->delta_heads = of_rank(model.delta_value_heads());
  layer->delta_key_heads = of_rank(model.delta_key_heads());
  layer->delta_taps = int64_t(model.delta_taps());
}

RecurrenceCosts RecurrenceOf(PlanBranch branch, const LayerShape& layer) {
  return branch == kMambaBranch ? MambaRecurrence(layer) : DeltaRecurrence(layer);
}

KernelShape RecurrenceKernel(PlanBranch branch, const LayerShape& layer, const std::string& pass) {
  if (branch == kMambaBranch) {
    const double heads = double(layer.mamba_heads);
    return {kStateSpace, pass, heads / double(layer.mamba_groups),
            double(layer.mamba_inner) / heads, double(layer.mamba_state)};
  }
  const double heads = double(layer.delta_heads), groups = double(layer.delta_key_heads);
  return {kGatedDelta, pass, heads / groups, double(layer.delta_values) / heads,
          double(layer.delta_keys) / groups};
}

RecurrenceCosts CostsOfRecurrenceKernel(const KernelShape& shape) {
  const int64_t heads = int64_t(shape.m), channels = int64_t(shape.n), rows = int64_t(shape.k);
  LayerShape layer;
  if (shape.kernel == kStateSpace) {
    layer.mamba_inner = heads * channels;
    layer.mamba_heads = heads;
    layer.mamba_groups = 1;
    layer.mamba_state = rows;
    return MambaRecurrence(layer);
  }
  layer.delta_keys = rows;
  layer.delta_values = heads * channels;
  layer.delta_heads = heads;
  layer.delta_key_heads = 1;
  return DeltaRecurrence(layer);
}

}  // namespace megatron
