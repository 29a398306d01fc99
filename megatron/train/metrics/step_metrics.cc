#include "megatron/train/metrics/step_metrics.h"

#include <cmath>

namespace megatron {

double Perplexity(double loss) { return std::exp(loss > 20 ? 20 : loss); }

}  // namespace megatron
