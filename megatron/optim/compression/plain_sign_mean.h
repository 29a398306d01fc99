// A reference of sign_mean.h, for tests.
#ifndef MEGATRON_OPTIM_COMPRESSION_PLAIN_SIGN_MEAN_H_
#define MEGATRON_OPTIM_COMPRESSION_PLAIN_SIGN_MEAN_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "megatron/optim/compression/sign_mean.h"

namespace megatron {

// The average by signs of one tensor over ranks, as it is published, by plain loops in one process.
class PlainSignMean {
 public:
  PlainSignMean(int64_t elements, int ranks)
      : elements_(elements),
        ranks_(ranks),
        padded_(SignMean::PaddedSize(elements, ranks)),
        errors_(ranks, std::vector<float>(padded_, 0)),
        mean_error_(padded_, 0) {}

  // Returns the mean of what the ranks have.
  std::vector<float> Average(const std::vector<std::vector<float>>& values) {
    std::vector<float> mean = mean_error_;
    for (int rank = 0; rank < ranks_; ++rank) {
      std::vector<float>& error = errors_[rank];
      for (int64_t i = 0; i < elements_; ++i) error[i] += values[rank][i];
      const float scale = ScaleOf(error, 0, padded_);
      for (int64_t i = 0; i < padded_; ++i) {
        const float summand = scale / static_cast<float>(ranks_);
        mean[i] += error[i] >= 0 ? summand : -summand;
        error[i] -= error[i] >= 0 ? scale : -scale;
      }
    }
    const int64_t chunk = padded_ / ranks_;
    for (int rank = 0; rank < ranks_; ++rank) {
      const float scale = ScaleOf(mean, rank * chunk, chunk);
      for (int64_t i = rank * chunk; i < (rank + 1) * chunk; ++i) {
        const float coded = mean[i] >= 0 ? scale : -scale;
        mean_error_[i] = mean[i] - coded;
        mean[i] = coded;
      }
    }
    mean.resize(elements_);
    return mean;
  }

 private:
  static float ScaleOf(const std::vector<float>& x, int64_t begin, int64_t count) {
    double sum = 0;
    for (int64_t i = begin; i < begin + count; ++i) sum += static_cast<double>(x[i]) * x[i];
    return static_cast<float>(std::sqrt(sum / static_cast<double>(count)));
  }

  const int64_t elements_;
  const int ranks_;
  const int64_t padded_;
  std::vector<std::vector<float>> errors_;
  std::vector<float> mean_error_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_COMPRESSION_PLAIN_SIGN_MEAN_H_
