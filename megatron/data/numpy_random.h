// The two random generators of numpy that Megatron's data order depends on, bit for bit.
//
// NumpyRandomState is numpy.random.RandomState(seed), the Mersenne twister: it shuffles documents
// and samples. NumpyGenerator is numpy.random.default_rng(seed), PCG64 seeded through SeedSequence:
// it draws the lengths of mock documents. numpy promises never to change the streams of the first
// (NEP 19); the streams of the second are those of numpy 1.17 to 2.x.
#ifndef MEGATRON_DATA_NUMPY_RANDOM_H_
#define MEGATRON_DATA_NUMPY_RANDOM_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <utility>

#include "absl/types/span.h"

namespace megatron {

class NumpyRandomState {
 public:
  explicit NumpyRandomState(uint32_t seed) : engine_(seed) {}

  // Returns a number uniform over [0, 2^32).
  uint32_t Word() { return static_cast<uint32_t>(engine_()); }

  // random_sample(): uniform over [0, 1), with 53 bits.
  double RandomSample();

  // Returns a number uniform over [0, maximum]; draws nothing if maximum is 0.
  uint64_t Bounded(uint64_t maximum);

  // randint(low, high): uniform over [low, high).
  int64_t RandInt(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Bounded(static_cast<uint64_t>(high - low - 1)));
  }

  // choice(len(p), p=p): returns index i with probability p[i]; the probabilities sum to 1.
  size_t Choice(absl::Span<const double> p);

  // geometric(p): the number of trials up to and including the first success. Requires 0 < p < 1/3;
  // numpy draws in another way above that.
  int64_t Geometric(double p);

  // binomial(1, p).
  bool Bernoulli(double p);

  // shuffle() of a one-dimensional array.
  template <typename T>
  void Shuffle(absl::Span<T> values) {
    // Swap partners are drawn a few steps ahead, so that prefetching them has time to work.
    constexpr size_t kAhead = 32;
    std::array<size_t, kAhead> partners;
    for (size_t left = values.size(); left > 1;) {
      const size_t count = std::min(kAhead, left - 1);
      for (size_t k = 0; k < count; ++k) {
        partners[k] = Bounded(left - 1 - k);
        __builtin_prefetch(&values[partners[k]], /*for write*/ 1);
      }
      for (size_t k = 0; k < count; ++k) std::swap(values[--left], values[partners[k]]);
    }
  }

 private:
  std::mt19937 engine_;
};

class NumpyGenerator {
 public:
  explicit NumpyGenerator(uint32_t seed);

  // Returns a number uniform over [0, 2^64).
  uint64_t Word();

  // random(): uniform over [0, 1), with 53 bits.
  double Random();

  // integers(low, high, dtype=int32): uniform over [low, high).
  int32_t Integer(int32_t low, int32_t high);

 private:
  // Returns halves of Word(), the low one first.
  uint32_t HalfWord();

  using Uint128 = unsigned __int128;
  Uint128 state_;
  Uint128 increment_;
  bool has_high_half_ = false;
  uint32_t high_half_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_DATA_NUMPY_RANDOM_H_
