#include "megatron/train/trainer/kept_state.h"

#include <cstring>
#include <string>
#include <type_traits>

#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/process_groups.h"
#include "megatron/models/model_stage.h"
#include "megatron/optim/packed_states.h"

namespace megatron {
namespace {

// QK-clip changes weights after their update, when other ranks may be lost. So does a rule that
// sends something in the middle of an update.
bool CanBeKept(Trainer& trainer) {
  const TrainerOptions& options = trainer.options();
  const ParameterBuffersOptions& buffers = trainer.buffers().options();
  const UpdateRule& rule = trainer.optimizer().rule();
  const bool has_copies =
      buffers.sharding == DataSharding::kNone || trainer.shard_copies() != nullptr;
  return buffers.device.type == DeviceType::kCpu && has_copies && !trainer.buffers().has_files() &&
         trainer.outer_optimizer() == nullptr && trainer.data_parallel().compressor() == nullptr &&
         !rule.averages_over_ranks() && options.model.transformer.moe.num_experts == 0 &&
         (!options.qk_clip.enabled || trainer.shard_copies() != nullptr) &&
         (rule.unit() == ShardUnit::kElement || trainer.groups().tensor.size() == 1 ||
          trainer.shard_copies() != nullptr) &&
         trainer.stage().float8_history().empty();
}

void SetNumbers(const std::vector<float>& numbers, Trainer* trainer) {
  auto next = numbers.begin();
  for (size_t i = 0; i < trainer->buffers().parameters().size(); ++i) {
    for (float& number : trainer->optimizer().NumbersOf(i)) number = *next++;
  }
}

// The shards of one iteration that a rank has, by number; null: it has not.
std::vector<KeptShard*> ShardsOf(KeptState* mine, const StateInMemory& state,
                                 const ProcessGroups& groups) {
  std::vector<KeptShard*> shards(static_cast<size_t>(state.shards), nullptr);
  if (mine == nullptr || mine->sharing.count != state.shards ||
      mine->tensor_rank != groups.tensor.rank() || mine->pipeline_rank != groups.pipeline.rank())
    return shards;
  for (KeptShard& shard : mine->shards) {
    if (shard.common.progress.iteration == state.iteration) shards[shard.shard] = &shard;
  }
  return shards;
}

template <typename T>
Tensor Bytes(T* values, size_t count) {
  return Tensor(values, DType::kUInt8, {static_cast<int64_t>(count * sizeof(T))});
}

}  // namespace

std::optional<KeptState> KeepState(Trainer& trainer, int64_t evaluated_iteration) {
  if (!CanBeKept(trainer)) return std::nullopt;
  const ParameterBuffers& buffers = trainer.buffers();
  KeptState kept;
  kept.tensor_rank = trainer.groups().tensor.rank();
  kept.pipeline_rank = trainer.groups().pipeline.rank();
  if (trainer.shard_copies() != nullptr) {
    kept.sharing = StateShards::Of(buffers.options());
    kept.shards = trainer.shard_copies()->Keep();
    return kept;
  }
  const PackedStates all(trainer.stage().parameters(), buffers, DataRank(), /*by_parts=*/false);
  KeptShard state;
  state.common = trainer.common_state(evaluated_iteration);
  state.numbers = trainer.UpdateNumbers();
  state.bytes.resize(static_cast<size_t>(all.bytes()));
  all.Pack(buffers, state.bytes.data());
  kept.shards.push_back(std::move(state));
  return kept;
}

absl::StatusOr<int64_t> RestoreKeptState(KeptState* mine, const StateInMemory& state,
                                         Trainer* trainer) {
  static_assert(std::is_trivially_copyable_v<CommonState>);
  const ProcessGroups& groups = trainer->groups();
  const ProcessGroup& copies = groups.data_context;
  const Stream& stream = trainer->stream();
  const std::vector<KeptShard*> shards = ShardsOf(mine, state, groups);
  const size_t count = shards.size();
  // The first rank that has a shard sends it, unless all have it; and all learn how it was cut.
  std::vector<int32_t> senders(count), all_have(count);
  int32_t cut[] = {0, 0};
  for (size_t i = 0; i < count; ++i) {
    senders[i] = shards[i] != nullptr ? copies.rank() : copies.size();
    all_have[i] = shards[i] != nullptr ? 1 : 0;
    if (shards[i] == nullptr) continue;
    cut[0] = mine->sharing.parts;
    cut[1] = mine->sharing.by_parts ? 1 : 0;
  }
  const Shape numbers_of_all = {static_cast<int64_t>(count)};
  copies.AllReduce(Tensor(senders.data(), DType::kInt32, numbers_of_all), ReduceOp::kMin, stream);
  copies.AllReduce(Tensor(all_have.data(), DType::kInt32, numbers_of_all), ReduceOp::kMin, stream);
  copies.AllReduce(Tensor(cut, DType::kInt32, {2}), ReduceOp::kMax, stream);
  if (!copies.status().ok()) return copies.status();
  StateShards sharing;
  sharing.count = state.shards;
  sharing.parts = cut[0];
  sharing.by_parts = cut[1] != 0;

  CommonState common;
  std::vector<float> numbers(trainer->UpdateNumbers().size());
  std::string received;
  for (size_t i = 0; i < count; ++i) {
    if (senders[i] == copies.size()) return absl::InternalError("no rank has kept the state");
    const PackedStates packed(trainer->stage().parameters(), trainer->buffers(),
                              sharing.Rank(static_cast<int>(i)), sharing.by_parts);
    if (shards[i] != nullptr) {
      common = shards[i]->common;
      CHECK_EQ(numbers.size(), shards[i]->numbers.size());
      numbers = shards[i]->numbers;
      CHECK_EQ(static_cast<size_t>(packed.bytes()), shards[i]->bytes.size());
    }
    if (all_have[i] == 0 && packed.bytes() > 0) {
      received.resize(static_cast<size_t>(packed.bytes()));
      std::string& bytes = senders[i] == copies.rank() ? shards[i]->bytes : received;
      copies.Broadcast(Bytes(bytes.data(), bytes.size()), senders[i], stream);
    }
    if (i == 0 && all_have[i] == 0) {
      copies.Broadcast(Bytes(&common, 1), senders[i], stream);
      if (!numbers.empty())
        copies.Broadcast(Bytes(numbers.data(), numbers.size()), senders[i], stream);
    }
    if (!copies.status().ok()) return copies.status();
    packed.Unpack((shards[i] != nullptr ? shards[i]->bytes : received).data(), trainer->buffers());
  }
  // Some ranks may have evaluated when others found that a rank was lost.
  int64_t evaluated[] = {common.progress.consumed_valid_samples, common.evaluated_iteration};
  groups.world.AllReduce(Tensor(evaluated, DType::kInt64, {2}), ReduceOp::kMin, stream);
  if (!groups.world.status().ok()) return groups.world.status();
  common.progress.consumed_valid_samples = evaluated[0];
  trainer->progress() = common.progress;
  trainer->scheduler().set_state(common.schedule);
  trainer->scaler().set_state(common.scaler);
  trainer->optimizer().set_applied_steps(common.applied_steps);
  trainer->optimizer().set_pending(common.pending);
  SetNumbers(numbers, trainer);
  trainer->buffers().CopyMastersToWeights(stream);
  MEGATRON_RETURN_IF_ERROR(trainer->ShareWeights());
  return evaluated[1];
}

}  // namespace megatron
