#include "megatron/train/trainer/flops.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/train/recipes/model_rules_of.h"

namespace megatron {
namespace {

struct Peak {
  absl::string_view name;
  double fp32;
  double half;
};

// Vendors' data sheets, without sparsity; fp32 without TF32. The first name that is contained
// counts.
constexpr Peak kPeaks[] = {
    {"GB200", 80e12, 2500e12}, {"B200", 80e12, 2250e12},     {"H200", 67e12, 989e12},
    {"GH200", 67e12, 989e12},  {"H100 PCIe", 51e12, 756e12}, {"H100 NVL", 60e12, 835e12},
    {"H100", 67e12, 989e12},   {"A100", 19.5e12, 312e12},    {"A800", 19.5e12, 312e12},
    {"H800", 67e12, 989e12},   {"V100", 15.7e12, 125e12},    {"L40S", 91.6e12, 362e12},
};

// The multiply-adds of a sample's forward pass through one layer, or behind the last.
struct PassCounts {
  double weights = 0, activations = 0;
};

PassCounts CountsOf(const MatrixProducts& products) {
  return {WeightMultiplyAdds(products), ActivationMultiplyAdds(products)};
}

// What a layer computes less than all, or, where it is negative, more: in multiply-adds, of which
// backward has two for each of forward.
double SavedBy(const TrainedLayer& layer, const PassCounts& counts, double tokens) {
  const double adapters = tokens * layer.adapters;
  if (!layer.has_backward) return 2 * (counts.weights + counts.activations) - adapters;
  return counts.weights * (1 - layer.weights) - 2 * adapters - tokens * layer.trained_adapters;
}

}  // namespace

int64_t CountParameters(const config::ModelConfig& model, int64_t padded_vocab_size) {
  return ModelRulesOf(model).CountParameters(model, padded_vocab_size);
}

double FlopsPerToken(const config::ModelConfig& model, int64_t padded_vocab_size,
                     FlopsConvention convention, const TrainedLayers& trained) {
  // 2 forward, 2 for the input's gradient, 2 for the weight's.
  constexpr double kFlopsPerMultiplyAdd = 6;
  const ModelRules& rules = ModelRulesOf(model);
  const MatrixProducts head = rules.ProductsOfHead(model, padded_vocab_size);
  const std::vector<MatrixProducts> layers = rules.ProductsOfLayers(model, convention);
  double products = MultiplyAdds(head);
  for (const MatrixProducts& layer : layers) products += MultiplyAdds(layer);
  const double tokens = static_cast<double>(model.seq_length());
  const double all = kFlopsPerMultiplyAdd * products / tokens;
  if (trained.layers.empty()) return all;
  CHECK_EQ(trained.layers.size(), layers.size());
  double saved = WeightMultiplyAdds(head) * (1 - trained.head_weights);
  for (size_t i = 0; i < layers.size(); ++i)
    saved += SavedBy(trained.layers[i], CountsOf(layers[i]), tokens);
  return all - 2 * saved / tokens;
}

std::optional<double> PeakFlopsPerSecond(absl::string_view device_name, MatmulPrecision precision) {
  for (const Peak& peak : kPeaks) {
    if (absl::StrContains(device_name, peak.name))
      return precision == MatmulPrecision::kHalf ? peak.half : peak.fp32;
  }
  return std::nullopt;
}

}  // namespace megatron
