// A Stage that computes nothing: each action takes the time that it is told to, asleep. Running a
// schedule over such stages shows how long it takes with so many ranks, whatever the machine.
#ifndef MEGATRON_PIPELINE_SLEEPING_STAGE_H_
#define MEGATRON_PIPELINE_SLEEPING_STAGE_H_

#include <chrono>
#include <thread>
#include <vector>

#include "megatron/pipeline/schedule.h"
#include "megatron/pipeline/stage.h"

namespace megatron {

class SleepingStage : public Stage {
 public:
  // `costs` in seconds. `positions` of the chunks' parts among `parts` of the model.
  SleepingStage(const PartCosts& costs, std::vector<int> positions, int parts)
      : costs_(costs), positions_(std::move(positions)), parts_(parts) {}

  std::vector<TensorSpec> InputSpecs(int, int chunk) const override {
    return Edge(positions_[chunk] > 0);
  }
  std::vector<TensorSpec> OutputSpecs(int, int chunk) const override {
    return Edge(positions_[chunk] < parts_ - 1);
  }

  void Forward(const WorkItem& item, absl::Span<const Tensor>, absl::Span<const Tensor>,
               const Stream&) override {
    Sleep(CostsOf(item).forward);
  }
  void Backward(const WorkItem& item, absl::Span<const Tensor>, absl::Span<const Tensor>,
                const Stream&) override {
    const ActionCosts& costs = CostsOf(item);
    Sleep(costs.backward_input + (item.deferred_slot < 0 ? costs.backward_weight : 0));
  }
  void BackwardWeight(const WorkItem& item, const Stream&) override {
    Sleep(CostsOf(item).backward_weight);
  }

 private:
  const ActionCosts& CostsOf(const WorkItem& item) const {
    return costs_.At(positions_[item.chunk]);
  }
  static std::vector<TensorSpec> Edge(bool exists) {
    if (!exists) return {};
    return {{DType::kFloat32, {1}}};
  }
  static void Sleep(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }

  const PartCosts costs_;
  const std::vector<int> positions_;
  const int parts_;
};

}  // namespace megatron

#endif  // MEGATRON_PIPELINE_SLEEPING_STAGE_H_
