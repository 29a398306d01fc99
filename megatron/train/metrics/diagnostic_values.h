// The values of a step that is measured (logging.diagnostics_interval).
#ifndef MEGATRON_TRAIN_METRICS_DIAGNOSTIC_VALUES_H_
#define MEGATRON_TRAIN_METRICS_DIAGNOSTIC_VALUES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace megatron {

// A metric of one layer: "grad-norm/decoder.layers.0". It may be infinite or NaN.
struct LayerValue {
  std::string name;
  double value = 0;
};

// How often the tokens of a step chose each expert of a layer.
struct ExpertLoad {
  std::string layer;  // "decoder.layers.0"
  std::vector<int64_t> choices;
};

struct DiagnosticValues {
  std::vector<LayerValue> layers;  // by metric, and of each in the order of layers
  std::vector<ExpertLoad> experts;
  std::optional<double> max_attention_logit;  // that of all layers
  // The noise scale in samples (optim/gradient_noise.h).
  std::optional<double> noise_scale;
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_METRICS_DIAGNOSTIC_VALUES_H_
