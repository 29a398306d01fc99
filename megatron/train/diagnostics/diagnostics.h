// Diagnostics: what a step that is measured tells about learning, layer by layer: the norms of
// weights, gradients and updates, the extremes of activations, the load of experts, and the noise
// of gradients.
//
// A step that is measured computes what any other step computes, to the bit. The values are the
// same on all ranks, and depend on the layout by rounding only.
#ifndef MEGATRON_TRAIN_DIAGNOSTICS_DIAGNOSTICS_H_
#define MEGATRON_TRAIN_DIAGNOSTICS_DIAGNOSTICS_H_

#include <cstdint>
#include <memory>

#include "megatron/comm/process_groups.h"
#include "megatron/layers/activation_meter.h"
#include "megatron/models/model_options.h"
#include "megatron/models/model_stage.h"
#include "megatron/optim/gradient_noise.h"
#include "megatron/optim/gradient_parts.h"
#include "megatron/optim/parameter_buffers.h"
#include "megatron/optim/parameter_norms.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"
#include "megatron/train/diagnostics/model_layers.h"
#include "megatron/train/metrics/diagnostic_values.h"

namespace megatron {

struct DiagnosticsOptions {
  int64_t max_micro_batches = 0;  // the most of a step
  // Whether the gradients of a block are complete in one micro-batch before they begin in the next.
  bool gradients_in_order = true;
};

class Diagnostics {
 public:
  // Everything must outlive this. The stage counts the load of its experts from now on.
  Diagnostics(const ModelOptions& model, const DiagnosticsOptions& options,
              const ProcessGroups& groups, const ParameterBuffers& buffers, ModelStage* stage,
              const Stream& stream, MemoryLedger* ledger);

  // A step that is measured calls these in this order; all ranks measure the same steps. First,
  // before its gradients are zeroed.
  void StartStep(int64_t micro_batches, double loss_scale);
  // For StepInputs, DataParallel and StepOptions.
  ActivationMeter* activations() { return &activations_; }
  GradientParts* parts() { return &parts_; }
  UpdateObserver* update_observer() { return &norms_; }
  // Once gradients are complete, before the update.
  void AddGradients();
  // Makes the meter of activations ready for another step on the meta device.
  void StartPlanning() { activations_.StartStep(stream_); }
  // Once weights are updated, or are not because gradients were not finite. Collective; waits once
  // for the stream.
  DiagnosticValues Finish(bool updated, int64_t global_batch_size);

 private:
  // Places in the buffer, as bytes from its begin.
  struct Places {
    int64_t load = 0, rows = 0, norms = 0, parts = 0, squares = 0, largest = 0, scores = 0, end = 0;
  };
  static Places PlacesOf(int layers, int64_t experts, int64_t passes);

  // Shapes of the parts of the buffer.
  Tensor Load() const;     // int64 [transformer layers, 2, experts]; empty without experts
  Tensor Rows() const;     // int64 [transformer layers]
  Tensor Norms() const;    // fp32 [rows, kNumKinds, 2]
  Tensor Parts() const;    // fp32 [2, 2]
  Tensor Squares() const;  // fp32 [transformer layers, 2]
  Tensor Largest() const;  // fp32 [transformer layers, passes]
  Tensor Scores() const;   // the same
  // What is summed over ranks in int64, in fp32, and what is their maximum.
  Tensor Counts() const;
  Tensor Sums() const;
  Tensor Maxima() const;

  void SumOverRanks();
  void AddNorms(bool updated, DiagnosticValues* values) const;
  void AddActivations(DiagnosticValues* values) const;
  void AddExperts(DiagnosticValues* values) const;
  void AddNoise(int64_t global_batch_size, DiagnosticValues* values);

  const ModelLayers layers_;
  const DiagnosticsOptions options_;
  const int64_t experts_, hidden_size_;
  const ProcessGroups groups_;
  const Stream stream_;
  ModelStage* const stage_;
  const Places places_;
  Buffer buffer_;
  Buffer own_load_;  // the load of the stage's layers
  Tensor own_load_L2E_;
  HostMirror host_;
  ParameterNorms norms_;
  GradientParts parts_;
  ActivationMeter activations_;
  GradientNoise noise_;
  double loss_scale_ = 1;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_DIAGNOSTICS_DIAGNOSTICS_H_
