// The memory that a trainer needs, measured on the meta device.
#include <algorithm>
#include <map>
#include <set>

#include "absl/status/status.h"
#include "glog/logging.h"
#include "megatron/models/model_stage.h"
#include "megatron/pipeline/executor.h"
#include "megatron/train/diagnostics/diagnostics.h"
#include "megatron/train/trainer/trainer.h"

namespace megatron {

// A step of one part alone needs the most memory if it is the longest.
std::vector<int64_t> Trainer::MicroBatchesToMeasure() const {
  std::set<int64_t> counts = {options_.packing.max_micro_batches};
  if (options_.placement.parts() == 1) return {counts.begin(), counts.end()};
  for (const BatchSizeStep& step : options_.batch_size.steps)
    counts.insert(options_.batch_size.MicroBatchesOf(step.size));
  return {counts.begin(), counts.end()};
}

// Kept tokens take memory of their own. So a step that keeps nearly all of them takes more than one
// without dropping.
std::vector<int64_t> Trainer::KeptTokensToMeasure() const {
  const LengthSchedule& schedule = options_.random_ltd;
  if (!schedule.enabled()) return {0};
  if (schedule.max < options_.packing.seq_length) return {schedule.max};
  return {schedule.At(schedule.total_steps - 1), 0};
}

StageMemorySizes Trainer::Measure() {
  CHECK(stream_.is_meta());
  const int64_t micro_batches = options_.packing.max_micro_batches;
  packer_.PackShapes(micro_batches);
  if (inner_packer_ != nullptr) inner_packer_->PackShapes(micro_batches);
  std::vector<StagePlan> plans;
  const std::vector<int64_t> counts = MicroBatchesToMeasure();
  CHECK_EQ(counts.back(), micro_batches);
  // The order of ZB-V differs for each number.
  if (options_.pipeline_schedule == ScheduleKind::kZeroBubbleV) {
    for (size_t i = 0; i + 1 < counts.size(); ++i) plans.push_back(plans_.Make(counts[i]));
  }
  plans.push_back(plans_.MakeWithSlotsForAll(counts));
  plans.push_back(plans_.Forward(micro_batches));
  StageMemorySizes slots;
  slots.slots.assign(options_.placement.chunks, {0, 0});
  slots.deferred = slots.slots;
  for (const StagePlan& plan : plans) {
    for (int chunk = 0; chunk < plan.chunks(); ++chunk) {
      slots.slots[chunk].count = std::max(slots.slots[chunk].count, plan.slots[chunk]);
      slots.deferred[chunk].count =
          std::max(slots.deferred[chunk].count, plan.deferred_slots[chunk]);
    }
  }
  memory_ = std::make_unique<StageMemory>(stream_.device(), slots, nullptr);
  if (OffloadsActivations()) CHECK_EQ(memory_->MakeStore({}, stream_, nullptr), absl::OkStatus());
  if (OffloadsAttention())
    CHECK_EQ(memory_->MakeHostArenas({}, stream_, nullptr), absl::OkStatus());
  for (const StagePlan& plan : plans) {
    const bool training = &plan != &plans.back();
    StepInputs inputs =
        InputsOf(packer_.batches(), training ? StageMode::kTrain : StageMode::kEvaluate);
    if (diagnostics_ != nullptr) {
      diagnostics_->StartPlanning();
      inputs.activations = diagnostics_->activations();
    }
    for (const int64_t kept_tokens : KeptTokensToMeasure()) {
      inputs.kept_tokens = kept_tokens;
      stage_->StartStep(inputs);
      if (training) data_parallel_->StartStep(plan.microbatches);
      CHECK_EQ(RunSchedule(plan, stage_.get(), groups_.pipeline, &memory_->edges, stream_),
               absl::OkStatus());
      if (training) data_parallel_->FinalizeGradients();
    }
  }
  int64_t generation = 0;
  if (options_.max_generation_context > 0) {
    TextGenerator generator = MakeGenerator(nullptr);
    generator.Measure();
    generation = generator.bytes();
  }
  StageMemorySizes sizes = memory_->HighWater();
  sizes.generation = generation;
  sizes.whole_weights = data_parallel_->HighWater().weights;
  sizes.whole_gradients = data_parallel_->HighWater().gradients;
  if (options_.cuda_graphs.enabled)
    sizes.graph_inputs = GraphInputBytes(sizes.slots, packer_.BytesOfOne());
  return sizes;
}

std::map<std::string, int64_t> Trainer::MeasuredActivations() const {
  std::map<std::string, int64_t> bytes;
  std::vector<const Arena*> arenas = {&memory_->recompute, &memory_->scratch};
  for (const auto* slots : {&memory_->slots, &memory_->deferred}) {
    for (const auto& chunk : *slots) {
      if (!chunk.empty()) arenas.push_back(chunk[0].get());
    }
  }
  if (memory_->store != nullptr) {
    for (const Arena* window : memory_->store->windows()) arenas.push_back(window);
  }
  for (const Arena* arena : arenas) {
    for (const auto& [name, held] : arena->NamesAtHighWater()) bytes[name] += held;
  }
  return bytes;
}

}  // namespace megatron
