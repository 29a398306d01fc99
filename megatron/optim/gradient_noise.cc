#include "megatron/optim/gradient_noise.h"

#include <cmath>

#include "glog/logging.h"

namespace megatron {

void GradientNoise::Add(double part_squares, double part, double batch_squares, double batch) {
  CHECK(0 < part && part < batch) << part << " of " << batch;
  if (!std::isfinite(part_squares) || !std::isfinite(batch_squares)) return;
  const double trace = (part_squares - batch_squares) / (1 / part - 1 / batch);
  const double squares = (batch * batch_squares - part * part_squares) / (batch - part);
  trace_ = kDecay * trace_ + (1 - kDecay) * trace;
  squares_ = kDecay * squares_ + (1 - kDecay) * squares;
  weight_ = kDecay * weight_ + (1 - kDecay);
}

std::optional<double> GradientNoise::samples() const {
  if (squares_ <= 0 || trace_ < 0) return std::nullopt;
  return trace_ / squares_;
}

}  // namespace megatron
