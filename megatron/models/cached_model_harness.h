// A model with random weights and a cache, on the CPU, for tests.
#ifndef MEGATRON_MODELS_CACHED_MODEL_HARNESS_H_
#define MEGATRON_MODELS_CACHED_MODEL_HARNESS_H_

#include <memory>

#include "megatron/comm/process_groups.h"
#include "megatron/models/cached_model.h"
#include "megatron/models/make_stage.h"
#include "megatron/models/model_harness.h"

namespace megatron {

// A rank's part of a model with random weights, and its place.
struct RankModel {
  // `heads_are_alone`: the first stage has all of a model with multi-token prediction but the
  // heads, which the second has.
  RankModel(const ModelOptions& model_options, const ProcessGroups& of_rank,
            bool heads_are_alone = false)
      : options(model_options),
        groups(of_rank),
        mtp_before_last(heads_are_alone),
        harness(model_options, groups.tensor, /*seed=*/5, /*threads=*/2, Placement()) {}

  StagePlacement Placement() const {
    StagePlacement placement;
    placement.stage = groups.pipeline.rank();
    placement.stages = groups.pipeline.size();
    placement.mtp_before_last = mtp_before_last;
    if (mtp_before_last) placement.layers = {options.transformer.num_layers, 0};
    return placement;
  }

  // The sizes of arenas that `measure` needs of a stage on the meta device.
  template <typename Measure>
  StageMemorySizes SizesFor(const Measure& measure) const {
    const auto planned = [](const ProcessGroup& group) {
      return group.size() == 1 ? ProcessGroup()
                               : ProcessGroup::ForPlanning(group.size(), group.rank(), "plan");
    };
    StageSetup setup;
    setup.device = {DeviceType::kMeta};
    setup.placement = Placement();
    setup.tensor_group = planned(groups.tensor);
    const std::unique_ptr<ModelStage> stage = MakeStage(options, setup);
    for (Parameter* parameter : stage->parameters()) {
      parameter->data =
          Tensor(nullptr, options.transformer.dtype, parameter->sharding.local_shape, setup.device);
    }
    StageMemory memory(setup.device, {}, nullptr);
    measure(GeneratorSetup{stage.get(), &memory, nullptr, planned(groups.pipeline)});
    return memory.HighWater();
  }

  ModelOptions options;
  ProcessGroups groups;
  bool mtp_before_last;
  ModelHarness harness;
  MemoryLedger ledger;
};

// The model with a cache.
struct Cached {
  Cached(RankModel* rank, const CachedModelLimits& model_limits)
      : limits(model_limits),
        memory(Device(), rank->SizesFor([&](const GeneratorSetup& setup) {
          CachedModel(setup, limits, Stream::Meta(), nullptr).Measure();
        }),
               &rank->ledger),
        model({&rank->harness.stage(), &memory, nullptr, rank->groups.pipeline}, limits,
              rank->harness.stream(), &rank->ledger) {}

  CachedModelLimits limits;
  StageMemory memory;
  CachedModel model;
};

}  // namespace megatron

#endif  // MEGATRON_MODELS_CACHED_MODEL_HARNESS_H_
