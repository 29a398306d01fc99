#include "megatron/federated/shamir.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace megatron {
namespace {

// Multiplies in GF(2^8). Neither a branch nor an address depends on the factors, since one of them
// is secret.
uint8_t Multiply(uint8_t a, uint8_t b) {
  uint32_t product = 0, shifted = a;
  for (int bit = 0; bit < 8; ++bit) {
    product ^= shifted & (0u - (uint32_t{b} >> bit & 1u));
    shifted = shifted << 1 ^ (0x11bu & (0u - (shifted >> 7 & 1u)));
  }
  return static_cast<uint8_t>(product);
}

// Returns a^254, which is 1/a for a that is not 0.
uint8_t Inverse(uint8_t a) {
  uint8_t result = 1, power = a;
  for (int bit = 1; bit < 8; ++bit) {
    power = Multiply(power, power);
    result = Multiply(result, power);
  }
  return result;
}

}  // namespace

std::vector<KeyShare> SplitKey(const Key& key, int count, int threshold) {
  CHECK(1 <= threshold && threshold <= count && count <= kMostShares)
      << threshold << " of " << count;
  std::vector<Key> coefficients = {key};
  while (static_cast<int>(coefficients.size()) < threshold) coefficients.push_back(RandomKey());
  std::vector<KeyShare> shares(count);
  for (int s = 0; s < count; ++s) {
    KeyShare& share = shares[s];
    share.x = static_cast<uint8_t>(s + 1);
    for (int i = 0; i < kKeyBytes; ++i) {
      uint8_t value = 0;
      for (int power = threshold - 1; power >= 0; --power) {
        value = static_cast<uint8_t>(Multiply(value, share.x) ^ coefficients[power][i]);
      }
      share.y[i] = value;
    }
  }
  return shares;
}

absl::StatusOr<Key> JoinShares(absl::Span<const KeyShare> shares) {
  if (shares.empty()) return absl::InvalidArgumentError("there are no shares of a key");
  Key key{};
  for (const KeyShare& share : shares) {
    if (share.x == 0) return absl::InvalidArgumentError("a share of a key has the number 0");
    // Lagrange's weight of this share at 0; in this field a difference is a sum.
    uint8_t weight = 1;
    for (const KeyShare& other : shares) {
      if (&other == &share) continue;
      if (other.x == share.x) {
        return absl::InvalidArgumentError(
            absl::StrCat("two shares of a key have the number ", share.x));
      }
      const uint8_t difference = static_cast<uint8_t>(other.x ^ share.x);
      weight = Multiply(weight, Multiply(other.x, Inverse(difference)));
    }
    for (int i = 0; i < kKeyBytes; ++i) {
      key[i] = static_cast<uint8_t>(key[i] ^ Multiply(weight, share.y[i]));
    }
  }
  return key;
}

}  // namespace megatron
