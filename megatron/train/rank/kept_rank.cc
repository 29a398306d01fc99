#include "megatron/train/rank/kept_rank.h"

#include <utility>

#include "absl/algorithm/container.h"

namespace megatron {
namespace {

// Returns whether two states are cut alike and of the same part of the model.
bool AreCutAlike(const KeptState& a, const KeptState& b) {
  return a.sharing.count == b.sharing.count && a.tensor_rank == b.tensor_rank &&
         a.pipeline_rank == b.pipeline_rank;
}

bool Has(const KeptState& state, const KeptShard& shard) {
  return absl::c_any_of(state.shards, [&](const KeptShard& other) {
    return other.shard == shard.shard &&
           other.common.progress.iteration == shard.common.progress.iteration;
  });
}

}  // namespace

KeptState* KeptRank::Of(const StateInMemory& wanted) {
  for (std::optional<KeptState>* kept : {&state, &before}) {
    const bool has = kept->has_value() && (*kept)->sharing.count == wanted.shards &&
                     absl::c_any_of((*kept)->shards, [&](const KeptShard& shard) {
                       return shard.common.progress.iteration == wanted.iteration;
                     });
    if (has) return &**kept;
  }
  return nullptr;
}

void KeptRank::Keep(std::optional<KeptState> mine) {
  state = std::move(mine);
  before.reset();
}

void KeptRank::KeepBeside(const StateInMemory& begun, std::optional<KeptState> mine) {
  std::optional<KeptState> had;
  if (KeptState* const found = Of(begun); found != nullptr) had = std::move(*found);
  Keep(std::move(mine));
  if (!had) return;
  if (!state || !AreCutAlike(*state, *had)) {
    (state ? before : state) = std::move(had);
    return;
  }
  for (KeptShard& shard : had->shards) {
    if (!Has(*state, shard)) state->shards.push_back(std::move(shard));
  }
}

}  // namespace megatron
