#include "megatron/data/numpy_sum.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace megatron {
namespace {

// These are PW_BLOCKSIZE and the size of buffers in numpy's code.
constexpr size_t kBlockSize = 128, kBufferSize = 8192;

// A block has eight partial sums; more values are halved, at a multiple of eight.
double PairwiseSum(absl::Span<const double> values) {
  if (values.size() < 8) return std::accumulate(values.begin(), values.end(), 0.0);
  if (values.size() > kBlockSize) {
    const size_t half = values.size() / 2 / 8 * 8;
    return PairwiseSum(values.first(half)) + PairwiseSum(values.subspan(half));
  }
  double part[8];
  std::copy_n(values.begin(), 8, part);
  size_t i = 8;
  for (; i + 8 <= values.size(); i += 8) {
    for (size_t k = 0; k < 8; ++k) part[k] += values[i + k];
  }
  const double sum =
      ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
  return std::accumulate(values.begin() + i, values.end(), sum);
}

}  // namespace

double NumpySum(absl::Span<const double> values) {
  double sum = 0;
  for (size_t begin = 0; begin < values.size(); begin += kBufferSize)
    sum += PairwiseSum(values.subspan(begin, kBufferSize));
  return sum;
}

void NumpyNormalize(std::vector<double>* values) {
  const double sum = NumpySum(*values);
  for (double& value : *values) value /= sum;
}

}  // namespace megatron
