#include "megatron/federated/discrete_gaussian.h"

#include <cmath>

#include "absl/types/span.h"
#include "glog/logging.h"

namespace megatron {
namespace {

using Wide = unsigned __int128;

// Returns a number below `end`, each with the same probability.
Wide Below(Wide end, RandomWords* random) {
  int bits = 0;
  for (Wide rest = end - 1; rest > 0; rest >>= 1) ++bits;
  for (;;) {
    Wide value = 0;
    for (int got = 0; got < bits; got += 32) value = value << 32 | random->Next();
    value &= bits == 128 ? ~Wide{0} : (Wide{1} << bits) - 1;
    if (value < end) return value;
  }
}

// Returns true with the probability exp(-numerator / denominator), of a quotient of at most 1.
bool BernoulliOfExpOfPart(Wide numerator, Wide denominator, RandomWords* random) {
  // The number of factors until the first failure is odd with that probability, by the series.
  uint64_t k = 1;
  while (Below(denominator * k, random) < numerator) ++k;
  return k % 2 == 1;
}

bool BernoulliOfExp(Wide numerator, Wide denominator, RandomWords* random) {
  for (; numerator > denominator; numerator -= denominator) {
    if (!BernoulliOfExpOfPart(1, 1, random)) return false;
  }
  return BernoulliOfExpOfPart(numerator, denominator, random);
}

// Returns a number whose probability falls by exp(-1 / scale) with each step away from 0.
// `within` is set to false if it is too far away for DiscreteGaussian's arithmetic.
int64_t DiscreteLaplace(uint64_t scale, bool* within, RandomWords* random) {
  for (;;) {
    const uint64_t rest = static_cast<uint64_t>(Below(scale, random));
    if (!BernoulliOfExp(rest, scale, random)) continue;
    uint64_t whole = 0;
    while (BernoulliOfExpOfPart(1, 1, random)) ++whole;
    const bool negative = random->Next() & 1;
    *within = whole < 40;
    const int64_t magnitude = static_cast<int64_t>(rest + scale * whole);
    if (negative && magnitude == 0) continue;  // 0 would come twice
    return negative ? -magnitude : magnitude;
  }
}

}  // namespace

uint32_t RandomWords::Next() {
  if (at_ == words_.size()) {
    words_.assign(4096, 0);
    AddStream(seed_, first_, absl::MakeSpan(words_));
    first_ += static_cast<int64_t>(words_.size());
    at_ = 0;
  }
  return words_[at_++];
}

int64_t DiscreteGaussian(uint64_t variance, RandomWords* random) {
  CHECK(1 <= variance && variance <= kMostNoiseVariance) << variance;
  uint64_t deviation = static_cast<uint64_t>(std::sqrt(static_cast<double>(variance)));
  while (deviation * deviation > variance) --deviation;
  while ((deviation + 1) * (deviation + 1) <= variance) ++deviation;
  const uint64_t scale = deviation + 1;
  for (;;) {
    bool within = true;
    const int64_t value = DiscreteLaplace(scale, &within, random);
    // A number of 40 scales or more is accepted with a probability of less than exp(-700).
    if (!within) continue;
    const Wide product = Wide{static_cast<uint64_t>(value < 0 ? -value : value)} * scale;
    const Wide distance = product > variance ? product - variance : variance - product;
    // The quotient is at most 40^2, and the square has at most 2 * (29 + 29 + 6) bits.
    if (BernoulliOfExp(distance * distance, Wide{2} * variance * scale * scale, random)) {
      return value;
    }
  }
}

uint64_t NoiseVariance(double noise_multiplier, int32_t units) {
  CHECK(noise_multiplier > 0 && units > 0) << noise_multiplier << " " << units;
  const double deviation = noise_multiplier * units;
  const double variance = std::ceil(deviation * deviation);
  CHECK_LE(variance, static_cast<double>(kMostNoiseVariance));
  return static_cast<uint64_t>(variance);
}

}  // namespace megatron
