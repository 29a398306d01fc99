// Gaussian noise of whole numbers, for sums of whole numbers: an integer n has the probability
// exp(-n^2 / (2 variance)), up to a factor that is the same for all.
//
// The sampler is that of Canonne, Kamath and Steinke (2020). It uses integers alone, so the
// distribution is exact: no rounding of a floating-point number tells anything of the sum. Its time
// depends on what it draws.
#ifndef MEGATRON_FEDERATED_DISCRETE_GAUSSIAN_H_
#define MEGATRON_FEDERATED_DISCRETE_GAUSSIAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "megatron/federated/round_keys.h"

namespace megatron {

// The largest variance: a standard deviation of 2^28.
constexpr uint64_t kMostNoiseVariance = uint64_t{1} << 56;

// Random words from a seed. Threads: one at a time.
class RandomWords {
 public:
  // Tests alone give a seed; all others use RandomKey().
  explicit RandomWords(const Key& seed = RandomKey()) : seed_(seed) {}
  uint32_t Next();

 private:
  const Key seed_;
  std::vector<uint32_t> words_;
  size_t at_ = 0;
  int64_t first_ = 0;  // the word of the stream behind words_
};

// Returns one number. 1 <= variance <= kMostNoiseVariance.
int64_t DiscreteGaussian(uint64_t variance, RandomWords* random);

// Returns the least whole number that is at least (noise_multiplier * units)^2.
// 0 < noise_multiplier, 0 < units; the result is at most kMostNoiseVariance.
uint64_t NoiseVariance(double noise_multiplier, int32_t units);

}  // namespace megatron

#endif  // MEGATRON_FEDERATED_DISCRETE_GAUSSIAN_H_
