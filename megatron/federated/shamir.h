// Shamir's shares of a key: any `threshold` of them give the key, and fewer tell nothing of it.
#ifndef MEGATRON_FEDERATED_SHAMIR_H_
#define MEGATRON_FEDERATED_SHAMIR_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/federated/round_keys.h"

namespace megatron {

// The most shares of a key.
constexpr int kMostShares = 255;

// The values at `x` of polynomials over GF(2^8) (with the modulus of AES), one for each byte of the
// key, whose constant is that byte.
struct KeyShare {
  uint8_t x = 0;
  Key y{};
};

// Returns shares with x = 1 ... count. 1 <= threshold <= count <= kMostShares.
std::vector<KeyShare> SplitKey(const Key& key, int count, int threshold);

// Returns the key whose shares these are, which were made with the threshold shares.size(). Returns
// kInvalidArgument for an x of 0 and for two shares of one x. Shares of different keys give another
// key, without an error.
absl::StatusOr<Key> JoinShares(absl::Span<const KeyShare> shares);

}  // namespace megatron

#endif  // MEGATRON_FEDERATED_SHAMIR_H_
