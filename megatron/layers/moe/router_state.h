// The state of a stage's routers between micro-batches and steps: sums for the log, and the biases
// that balance the experts without a loss (L. Wang et al., arXiv 2408.15664). The biases are no
// weights: after a step, the bias of an expert that the global batch's tokens chose more often than
// the average falls by the update rate, and that of an expert chosen less often rises; or they
// follow from quantiles (quantile_bias.h).
//
// Legend: L layers with experts of the stage, E experts, B balance losses, Q bins of a quantile.
#ifndef MEGATRON_LAYERS_MOE_ROUTER_STATE_H_
#define MEGATRON_LAYERS_MOE_ROUTER_STATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "megatron/comm/process_group.h"
#include "megatron/layers/moe/moe_options.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {

class RouterState {
 public:
  // One layer's part.
  struct Layer {
    // fp32, summed over all layers and samples. Row 0 is the balance loss and the z loss; the
    // others begin with those of MoeOptions::further_balances.
    Tensor losses_B2;
    Tensor bias_E;    // fp32; empty without expert_bias
    Tensor chosen_E;  // int64, +=; empty without expert_bias, and with quantile_bins
    // The step's tokens by margin (int64, +=); empty without quantile_bins.
    Tensor margins_EQ;
    // This rank's choices in the step so far (int64, +=) and the number of micro-batches that they
    // come from, with BalanceUnit::kStep; else empty.
    Tensor so_far_E;
    int64_t* micro_batches = nullptr;
    // The step's choices before and after drops (int64, +=); empty unless they are counted.
    Tensor load_2E;
  };
  // A tensor that a checkpoint holds, in host memory, the same on all ranks of the stage.
  struct Named {
    std::string name;
    Tensor tensor;
  };

  RouterState() = default;  // the state of a stage without experts
  // `routers`: the names of the stage's routers, "decoder.layers.0.mlp.router".
  RouterState(const MoeOptions& options, const std::vector<std::string>& routers, Device device,
              MemoryLedger* ledger);

  bool empty() const { return names_.empty(); }
  int64_t num_layers() const { return static_cast<int64_t>(names_.size()); }
  Layer layer(int64_t index) const;
  const Tensor& losses_B2() const { return losses_B2_; }
  std::vector<Named> Tensors() const;
  // Sends the tensors. It must be called after Tensors() were loaded.
  void SendTensors(const Stream& stream) const;

  // Counts each expert's choices in `load_L2E` (int64 [num_layers(), 2, experts]) from now on. The
  // layers must be given their parts anew.
  void CountLoad(const Tensor& load_L2E) { load_L2E_ = load_L2E; }

  // Clears the sums. Must be called before the first micro-batch of a step.
  void StartStep(const Stream& stream);
  // Updates the biases. It must be called after the last micro-batch. `groups` are those over which
  // tokens are shared out; together they are all ranks of the stage.
  void UpdateBiases(absl::Span<const ProcessGroup> groups, const Stream& stream);

 private:
  bool balances_steps() const {
    for (const BalanceLoss& loss : options_.balances()) {
      if (loss.unit == BalanceUnit::kStep) return true;
    }
    return false;
  }

  MoeOptions options_;
  std::vector<std::string> names_;
  Buffer buffer_;
  // counted_ is [L, E], or [L, E, Q] with quantile_bins.
  Tensor losses_B2_, bias_LE_, counted_, so_far_LE_, load_L2E_;
  std::shared_ptr<std::vector<int64_t>> micro_batches_;  // one entry a layer
  HostMirror host_bias_, host_counted_;
};

}  // namespace megatron

#endif  // MEGATRON_LAYERS_MOE_ROUTER_STATE_H_
