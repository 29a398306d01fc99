// How much of a model's backward pass is computed where some parameters are frozen.
#ifndef MEGATRON_TRAIN_TRAINER_TRAINED_LAYERS_H_
#define MEGATRON_TRAIN_TRAINER_TRAINED_LAYERS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/models/model_options.h"

namespace megatron {

struct TrainedLayer {
  // Whether gradients flow through it; else it is only run forward.
  bool has_backward = true;
  // The part of the products with weights whose weights' gradients are computed.
  double weights = 1;
  // The numbers of weights of its low-rank adapters, and of those of them that are trained.
  double adapters = 0, trained_adapters = 0;
  double parameters = 1;  // the part of its parameters that is trained
};

struct TrainedLayers {
  // All stacks' layers in order, an encoder's first. Empty: all is trained.
  std::vector<TrainedLayer> layers;
  double head_weights = 1;  // TrainedLayer::weights of what is behind the last layer
};

// `freeze` are the expressions of NamePatterns. Errors are those of NamePatterns::Create.
absl::StatusOr<TrainedLayers> FindTrainedLayers(const ModelOptions& options,
                                                const std::vector<std::string>& freeze);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_TRAINED_LAYERS_H_
