// numpy's sum of doubles, bit for bit. Megatron divides weights by it, and the last bits of weights
// decide the order of samples.
#ifndef MEGATRON_DATA_NUMPY_SUM_H_
#define MEGATRON_DATA_NUMPY_SUM_H_

#include <vector>

#include "absl/types/span.h"

namespace megatron {

// Computes numpy.sum(values).
double NumpySum(absl::Span<const double> values);

// Divides the values by their NumpySum, as Megatron's normalize().
void NumpyNormalize(std::vector<double>* values);

}  // namespace megatron

#endif  // MEGATRON_DATA_NUMPY_SUM_H_
