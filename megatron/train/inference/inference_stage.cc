#include "megatron/train/inference/inference_stage.h"

#include <utility>

#include "megatron/base/round_up.h"
#include "megatron/base/status_macros.h"
#include "megatron/models/make_stage.h"

namespace megatron {
namespace {

int64_t AlignedBytes(const Tensor& tensor) { return RoundUp(tensor.bytes(), Buffer::kAlignment); }

// Gives every parameter its place in a block from `buffer`, or without one just its shape; returns
// the bytes of the block.
int64_t BindWeights(const ModelOptions& options, const Buffer* buffer, ModelStage* stage) {
  int64_t offset = 0;
  for (Parameter* parameter : stage->parameters()) {
    const Shape& shape = parameter->sharding.local_shape;
    parameter->data = buffer == nullptr
                          ? Tensor(nullptr, options.transformer.dtype, shape, {DeviceType::kMeta})
                          : buffer->At(offset, options.transformer.dtype, shape);
    offset += AlignedBytes(parameter->data);
  }
  return offset;
}

// The same rank of a group of which there is no other, for the meta device.
ProcessGroup Planned(const ProcessGroup& group) {
  if (group.size() == 1) return ProcessGroup();
  return ProcessGroup::ForPlanning(group.size(), group.rank(), group.name());
}

// The stages' layers differ by one at most, and the first stages have more.
StagePlacement PlacementOf(const ModelOptions& options, const ProcessGroup& pipeline) {
  StagePlacement placement;
  placement.stage = pipeline.rank();
  placement.stages = pipeline.size();
  const int64_t layers = options.num_encoder_layers + options.transformer.num_layers;
  for (int stage = 0; stage < placement.stages; ++stage) {
    placement.layers.push_back(layers / placement.stages +
                               (stage < layers % placement.stages ? 1 : 0));
  }
  return placement;
}

StageSetup SetupOf(const ModelOptions& options, const ProcessGroups& groups, bool planned,
                   MemoryLedger* ledger) {
  const auto rank_of = [planned](const ProcessGroup& group) {
    return planned ? Planned(group) : group;
  };
  StageSetup setup;
  if (planned) setup.device = {DeviceType::kMeta};
  setup.ledger = ledger;
  setup.placement = PlacementOf(options, groups.pipeline);
  setup.tensor_group = rank_of(groups.tensor);
  setup.expert_groups = {rank_of(groups.expert),
                         rank_of(groups.expert_tensor),
                         rank_of(groups.expert_model),
                         rank_of(groups.data),
                         ProcessGroup(),
                         ProcessGroup()};
  return setup;
}

struct StageSizes {
  int64_t weights = 0;  // number of bytes
  StageMemorySizes memory;
};

StageSizes MeasureStage(const ModelOptions& options, const ProcessGroups& groups,
                        absl::FunctionRef<void(const GeneratorSetup& setup)> measure) {
  const Device meta = {DeviceType::kMeta};
  const std::unique_ptr<ModelStage> stage =
      MakeStage(options, SetupOf(options, groups, /*planned=*/true, nullptr));
  StageMemory memory(meta, {}, nullptr);
  const int64_t weights = BindWeights(options, nullptr, stage.get());
  measure({stage.get(), &memory, nullptr, Planned(groups.pipeline)});
  return {weights, memory.HighWater()};
}

}  // namespace

InferenceStage::InferenceStage(const ModelOptions& options, const ProcessGroups& groups,
                               absl::FunctionRef<void(const GeneratorSetup& setup)> measure,
                               MemoryLedger* ledger)
    : pipeline_(groups.pipeline),
      stage_(MakeStage(options, SetupOf(options, groups, /*planned=*/false, ledger))) {
  const StageSizes sizes = MeasureStage(options, groups, measure);
  weights_ = Buffer({}, sizes.weights, "weights", ledger);
  BindWeights(options, &weights_, stage_.get());
  memory_ = std::make_unique<StageMemory>(Device(), sizes.memory, ledger);
}

int64_t InferenceStage::PlannedBytes(const ModelOptions& options, const ProcessGroups& groups,
                                     absl::FunctionRef<void(const GeneratorSetup& setup)> measure) {
  const StageSizes sizes = MeasureStage(options, groups, measure);
  return sizes.weights + sizes.memory.total();
}

InferenceStage::~InferenceStage() = default;

absl::Status InferenceStage::LoadWeights(const CheckpointReader& reader) {
  for (Parameter* parameter : stage_->parameters()) {
    MEGATRON_RETURN_IF_ERROR(
        reader.Read(parameter->name, parameter->sharding.offset, parameter->data));
  }
  for (const RouterState::Named& state : stage_->router_state().Tensors()) {
    MEGATRON_RETURN_IF_ERROR(reader.Read(state.name, {0}, state.tensor));
  }
  return absl::OkStatus();
}

GeneratorSetup InferenceStage::setup() { return {stage_.get(), memory_.get(), nullptr, pipeline_}; }

}  // namespace megatron
