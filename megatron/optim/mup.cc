#include "megatron/optim/mup.h"

#include <cmath>

namespace megatron {

double MupLrFactor(OptimizerOptions::Kind kind, double width_mult) {
  return kind == OptimizerOptions::kSgd ? width_mult : 1 / width_mult;
}

void ApplyMup(OptimizerOptions::Kind kind, double width_mult, Parameter* parameter) {
  const bool is_hidden = parameter->matrix.has_value();
  if (is_hidden && parameter->initializer.kind == Initializer::kNormal)
    parameter->initializer.stddev /= static_cast<float>(std::sqrt(width_mult));
  if (kind == OptimizerOptions::kMuon) return;
  parameter->has_scaled_lr = is_hidden != (kind == OptimizerOptions::kSgd);
  if (kind == OptimizerOptions::kAdamW && is_hidden)
    parameter->epsilon_factor = static_cast<float>(1 / width_mult);
}

}  // namespace megatron
