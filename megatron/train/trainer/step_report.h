// What a step of training or an evaluation has measured.
#ifndef MEGATRON_TRAIN_TRAINER_STEP_REPORT_H_
#define MEGATRON_TRAIN_TRAINER_STEP_REPORT_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "megatron/islands/island_link.h"
#include "megatron/models/measure.h"
#include "megatron/optim/optimizer.h"
#include "megatron/train/metrics/diagnostic_values.h"
#include "megatron/train/rerun/step_validator.h"

namespace megatron {

// Means over the global batches of a step or an evaluation.
struct Measured {
  double loss = 0;  // the sum of the losses that the model's head measures
  // Each measure and its mean; after a step also those of the router's losses that are trained on.
  absl::InlinedVector<std::pair<Measure, double>, 4> values;
  // The names of measures whose 0 is a mean over no values.
  std::vector<const char*> undefined_means;
};

// The losses of the tokens of one of several sources in a step: the sums of weight * loss and of
// weight. A step without tokens of a source that count has none of it.
struct SourceLoss {
  int source = 0;  // SampleSource::SourceOf
  double sum = 0, weight = 0;
};

struct StepReport : Measured {
  std::vector<SourceLoss> sources;  // with TrainerOptions::num_sources
  // Means over the global batch's samples and the layers with experts, without their coefficients;
  // 1 where all experts are chosen alike, and the mean square of the router's log-sum-exp.
  double load_balancing_loss = 0, z_loss = 0;
  StepResult update;
  double learning_rate = 0;  // learning rate after the step, as Megatron prints it
  std::optional<double> decoupled_learning_rate;  // likewise; that of StepOptions::decoupled_lr
  double loss_scale = 1;                          // loss scale that the step used
  int64_t global_batch_size = 0;
  int64_t seq_length = 0;   // tokens of each sample, or the most of them where they vary
  int64_t kept_tokens = 0;  // those that layers see which drop tokens; 0: all
  double params_norm = 0;
  int64_t num_zeros = 0;
  // The part of the elements of gradients that all ranks sent; set where it depends on gradients.
  std::optional<double> sent_gradients;
  // Empty but after steps that are measured, and for the largest score where QK-clip is on.
  DiagnosticValues diagnostics;
  std::optional<IslandLink::Round> round;  // after a step with a round of the outer server
  StepFinding rerun;                       // of a step that was computed again
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_STEP_REPORT_H_
