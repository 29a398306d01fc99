// A stage that records in the trace of its stream the bytes that its micro-batches keep for their
// backward.
#ifndef MEGATRON_TRAIN_PROFILE_COUNTED_STAGE_H_
#define MEGATRON_TRAIN_PROFILE_COUNTED_STAGE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "megatron/models/stage_memory.h"
#include "megatron/pipeline/stage_wrapper.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {

class CountedStage : public StageWrapper {
 public:
  // `stage` and `memory`, the stage's memory, must outlive this.
  CountedStage(Stage* stage, const StageMemory& memory) : StageWrapper(stage), memory_(memory) {}

  void Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
               absl::Span<const Tensor> outputs, const Stream& stream) override {
    inner().Forward(item, inputs, outputs, stream);
    Count(Saved(item), stream);
  }
  void Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                absl::Span<const Tensor> input_gradients, const Stream& stream) override {
    inner().Backward(item, output_gradients, input_gradients, stream);
    Count(item.deferred_slot < 0 ? -Saved(item) : Deferred(item), stream);
  }
  void BackwardWeight(const WorkItem& item, const Stream& stream) override {
    inner().BackwardWeight(item, stream);
    Count(-Saved(item) - Deferred(item), stream);
  }

 private:
  int64_t Saved(const WorkItem& item) const { return memory_.slots[item.chunk][item.slot]->Mark(); }
  int64_t Deferred(const WorkItem& item) const {
    return memory_.deferred[item.chunk][item.deferred_slot]->Mark();
  }
  void Count(int64_t more, const Stream& stream) {
    kept_ += more;
    CountInTrace(stream, "bytes kept for backward", kept_);
  }

  const StageMemory& memory_;
  int64_t kept_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PROFILE_COUNTED_STAGE_H_
