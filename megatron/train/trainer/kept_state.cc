#include "megatron/train/trainer/kept_state.h"

#include <cstring>
#include <type_traits>

#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/process_groups.h"
#include "megatron/models/model_stage.h"

namespace megatron {
namespace {

// QK-clip changes weights after their update, when other ranks may be lost.
bool CanBeKept(Trainer& trainer) {
  const TrainerOptions& options = trainer.options();
  const ParameterBuffersOptions& buffers = trainer.buffers().options();
  return buffers.device.type == DeviceType::kCpu && buffers.sharding == DataSharding::kNone &&
         !trainer.buffers().has_files() && trainer.outer_optimizer() == nullptr &&
         trainer.data_parallel().compressor() == nullptr &&
         !trainer.optimizer().rule().averages_over_ranks() &&
         options.model.transformer.moe.num_experts == 0 && !options.qk_clip.enabled &&
         trainer.stage().float8_history().empty();
}

// Returns the master weights and optimizer states, in the same order on all copies.
std::vector<Tensor> StatesOf(Trainer& trainer) {
  std::vector<Tensor> tensors;
  for (const ParameterState& state : trainer.buffers().States()) {
    if (!state.master.empty()) tensors.push_back(state.master);
    for (const Tensor& tensor : state.states) {
      if (!tensor.empty()) tensors.push_back(tensor);
    }
  }
  return tensors;
}

std::vector<float> NumbersOf(Trainer& trainer) {
  std::vector<float> numbers;
  for (size_t i = 0; i < trainer.buffers().parameters().size(); ++i) {
    for (float number : trainer.optimizer().NumbersOf(i)) numbers.push_back(number);
  }
  return numbers;
}

void SetNumbers(const std::vector<float>& numbers, Trainer* trainer) {
  auto next = numbers.begin();
  for (size_t i = 0; i < trainer->buffers().parameters().size(); ++i) {
    for (float& number : trainer->optimizer().NumbersOf(i)) number = *next++;
  }
}

}  // namespace

std::optional<KeptState> KeepState(Trainer& trainer, int64_t evaluated_iteration) {
  if (!CanBeKept(trainer)) return std::nullopt;
  KeptState kept;
  kept.tensor_rank = trainer.groups().tensor.rank();
  kept.pipeline_rank = trainer.groups().pipeline.rank();
  kept.common = {trainer.progress(), trainer.scheduler().state(), trainer.scaler().state(),
                 trainer.optimizer().applied_steps(), evaluated_iteration};
  for (const Tensor& tensor : StatesOf(trainer)) {
    CHECK(tensor.is_contiguous());
    kept.tensors.emplace_back(static_cast<const char*>(tensor.raw()),
                              static_cast<size_t>(tensor.bytes()));
  }
  kept.numbers = NumbersOf(trainer);
  return kept;
}

absl::StatusOr<int64_t> RestoreKeptState(const KeptState* mine, int64_t iteration,
                                         Trainer* trainer) {
  static_assert(std::is_trivially_copyable_v<KeptState::Common>);
  const ProcessGroups& groups = trainer->groups();
  const ProcessGroup& copies = groups.data_context;
  const Stream& stream = trainer->stream();
  const bool has_state = mine != nullptr && mine->iteration() == iteration &&
                         mine->tensor_rank == groups.tensor.rank() &&
                         mine->pipeline_rank == groups.pipeline.rank();
  // The first copy that has the state sends it, unless all have it.
  int32_t facts[] = {has_state ? copies.rank() : copies.size(), has_state ? 1 : 0};
  copies.AllReduce(Tensor(facts, DType::kInt32, {2}), ReduceOp::kMin, stream);
  if (!copies.status().ok()) return copies.status();
  const int source = facts[0];
  if (source == copies.size()) return absl::InternalError("no rank has kept the state");
  const bool all_have_it = facts[1] != 0;

  const std::vector<Tensor> tensors = StatesOf(*trainer);
  KeptState::Common common;
  std::vector<float> numbers(NumbersOf(*trainer).size());
  if (has_state) {
    CHECK_EQ(mine->tensors.size(), tensors.size());
    CHECK_EQ(mine->numbers.size(), numbers.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      CHECK_EQ(static_cast<size_t>(tensors[i].bytes()), mine->tensors[i].size());
      std::memcpy(tensors[i].raw(), mine->tensors[i].data(), mine->tensors[i].size());
    }
    common = mine->common;
    numbers = mine->numbers;
  }
  if (!all_have_it) {
    for (const Tensor& tensor : tensors) copies.Broadcast(tensor, source, stream);
    copies.Broadcast(Tensor(&common, DType::kUInt8, {static_cast<int64_t>(sizeof(common))}), source,
                     stream);
    if (!numbers.empty()) {
      copies.Broadcast(
          Tensor(numbers.data(), DType::kFloat32, {static_cast<int64_t>(numbers.size())}), source,
          stream);
    }
    if (!copies.status().ok()) return copies.status();
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
  SetNumbers(numbers, trainer);
  trainer->buffers().CopyMastersToWeights(stream);
  MEGATRON_RETURN_IF_ERROR(trainer->ShareWeights());
  return evaluated[1];
}

}  // namespace megatron
