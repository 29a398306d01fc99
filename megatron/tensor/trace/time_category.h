// The categories that a rank's time is told apart by.
#ifndef MEGATRON_TENSOR_TRACE_TIME_CATEGORY_H_
#define MEGATRON_TENSOR_TRACE_TIME_CATEGORY_H_

#include <cstdint>

namespace megatron {

enum class TimeCategory : uint8_t {
  kOther,    // a step's work that no span tells apart
  kCompute,  // forward and backward passes
  // Calls with other ranks, by the axis of their group. Calls of all ranks are kWorld.
  kTensorParallel,
  kContextParallel,
  kExpertParallel,
  kDataParallel,
  kPipelineParallel,
  kWorld,
  // Waiting for other stages of the pipeline. No span has this category: a part of
  // kPipelineParallel and kWorld is counted under it later (train/metrics/rank_times.h).
  kBubble,
  kOptimizer,
  kData,
  kCheckpoint,
  kEvaluation,  // nothing within an evaluation is told apart
  kHost,        // everything outside of steps: decisions, metrics, what is printed
};
constexpr int kNumTimeCategories = static_cast<int>(TimeCategory::kHost) + 1;

constexpr const char* Name(TimeCategory category) {
  constexpr const char* kNames[] = {"other", "compute",    "tp",         "cp",     "ep",
                                    "dp",    "pp",         "world",      "bubble", "optimizer",
                                    "data",  "checkpoint", "evaluation", "host"};
  return kNames[static_cast<int>(category)];
}

constexpr bool IsCommunication(TimeCategory category) {
  return category >= TimeCategory::kTensorParallel && category <= TimeCategory::kWorld;
}

}  // namespace megatron

#endif  // MEGATRON_TENSOR_TRACE_TIME_CATEGORY_H_
