#include "megatron/data/numpy_random.h"

#include <array>
#include <cmath>
#include <numeric>

#include "glog/logging.h"

namespace megatron {
namespace {

// SeedSequence's hash, which turns one seed word into as many words as a generator needs. The
// constants are O'Neill's ("Developing a seed_seq alternative"), as numpy fixed them.
class SeedSequence {
 public:
  explicit SeedSequence(uint32_t seed) {
    uint32_t hash = 0x43b0d7e5u;
    const auto mix_in = [&hash](uint32_t value) {
      value ^= hash;
      hash *= 0x931e8875u;
      value *= hash;
      return value ^ (value >> 16);
    };
    for (size_t i = 0; i < pool_.size(); ++i) pool_[i] = mix_in(i == 0 ? seed : 0);
    for (size_t from = 0; from < pool_.size(); ++from) {
      for (size_t to = 0; to < pool_.size(); ++to) {
        if (from == to) continue;
        const uint32_t mixed = 0xca01f9ddu * pool_[to] - 0x4973f715u * mix_in(pool_[from]);
        pool_[to] = mixed ^ (mixed >> 16);
      }
    }
  }

  std::array<uint64_t, 4> Generate() const {
    std::array<uint64_t, 4> words = {};
    uint32_t hash = 0x8b51f9ddu;
    for (int i = 0; i < 8; ++i) {
      uint32_t value = pool_[i % pool_.size()] ^ hash;
      hash *= 0x58f38dedu;
      value *= hash;
      value ^= value >> 16;
      words[i / 2] |= uint64_t{value} << (32 * (i % 2));
    }
    return words;
  }

 private:
  std::array<uint32_t, 4> pool_;
};

}  // namespace

double NumpyRandomState::RandomSample() {
  const uint32_t high = Word() >> 5;
  const uint32_t low = Word() >> 6;
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

uint64_t NumpyRandomState::Bounded(uint64_t maximum) {
  if (maximum == 0) return 0;
  const uint64_t mask = ~uint64_t{0} >> __builtin_clzll(maximum);
  uint64_t value;
  do {
    value = Word();
    if (maximum > 0xffffffffu) value = value << 32 | Word();
    value &= mask;
  } while (value > maximum);
  return value;
}

size_t NumpyRandomState::Choice(absl::Span<const double> p) {
  CHECK(!p.empty());
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  const double drawn = RandomSample();
  size_t index = 0;
  for (double sum = p[0]; index + 1 < p.size() && sum / total <= drawn; sum += p[index]) ++index;
  return index;
}

int64_t NumpyRandomState::Geometric(double p) {
  CHECK(0 < p && p < 1.0 / 3) << p;
  return static_cast<int64_t>(std::ceil(std::log1p(-RandomSample()) / std::log(1 - p)));
}

// numpy inverts the binomial distribution by stepping through it, always for the rarer outcome. A
// draw that rounding carries past the last step is repeated.
bool NumpyRandomState::Bernoulli(double p) {
  const double rare = p <= 0.5 ? p : 1 - p;
  const double common = 1 - rare;
  const double none = std::exp(std::log(common));
  double drawn;
  do {
    drawn = RandomSample();
  } while (drawn > none && drawn - none > rare * none / common);
  return (drawn > none) == (p <= 0.5);
}

// O'Neill's PCG64: a 128-bit linear congruential generator whose output is its halves' exclusive
// or, rotated.
constexpr unsigned __int128 kPcgMultiplier =
    static_cast<unsigned __int128>(2549297995355413924u) << 64 | 4865540595714422341u;

NumpyGenerator::NumpyGenerator(uint32_t seed) {
  const std::array<uint64_t, 4> words = SeedSequence(seed).Generate();
  const Uint128 start = Uint128{words[0]} << 64 | words[1];
  increment_ = (Uint128{words[2]} << 64 | words[3]) << 1 | 1;
  state_ = (increment_ + start) * kPcgMultiplier + increment_;
}

uint64_t NumpyGenerator::Word() {
  state_ = state_ * kPcgMultiplier + increment_;
  const uint64_t value = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
  const int rotation = static_cast<int>(state_ >> 122);
  return value >> rotation | value << (-rotation & 63);
}

double NumpyGenerator::Random() { return static_cast<double>(Word() >> 11) / 9007199254740992.0; }

uint32_t NumpyGenerator::HalfWord() {
  has_high_half_ = !has_high_half_;
  if (!has_high_half_) return high_half_;
  const uint64_t word = Word();
  high_half_ = static_cast<uint32_t>(word >> 32);
  return static_cast<uint32_t>(word);
}

// Lemire's multiplication: the low half of the product tells whether to draw again.
int32_t NumpyGenerator::Integer(int32_t low, int32_t high) {
  CHECK_LT(low, high);
  const uint32_t count = static_cast<uint32_t>(high) - static_cast<uint32_t>(low);
  if (count == 1) return low;
  uint64_t product = uint64_t{HalfWord()} * count;
  const uint32_t reject_below = -count % count;
  while (static_cast<uint32_t>(product) < reject_below) product = uint64_t{HalfWord()} * count;
  return static_cast<int32_t>(static_cast<uint32_t>(low) + static_cast<uint32_t>(product >> 32));
}

}  // namespace megatron
