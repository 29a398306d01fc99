#include "megatron/train/trainer/flops.h"

#include <cstdint>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
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

}  // namespace

int64_t CountParameters(const config::ModelConfig& model, int64_t padded_vocab_size) {
  return ModelRulesOf(model).CountParameters(model, padded_vocab_size);
}

double FlopsPerToken(const config::ModelConfig& model, int64_t padded_vocab_size,
                     FlopsConvention convention) {
  // 2 forward, 2 for the input's gradient, 2 for the weight's.
  constexpr double kFlopsPerMultiplyAdd = 6;
  const ModelRules& rules = ModelRulesOf(model);
  double products = MultiplyAdds(rules.ProductsOfHead(model, padded_vocab_size));
  for (const MatrixProducts& layer : rules.ProductsOfLayers(model, convention))
    products += MultiplyAdds(layer);
  return kFlopsPerMultiplyAdd * products / static_cast<double>(model.seq_length());
}

std::optional<double> PeakFlopsPerSecond(absl::string_view device_name, MatmulPrecision precision) {
  for (const Peak& peak : kPeaks) {
    if (absl::StrContains(device_name, peak.name))
      return precision == MatmulPrecision::kHalf ? peak.half : peak.fp32;
  }
  return std::nullopt;
}

}  // namespace megatron
