// The keys of a secure sum (secure_sum.h), and what is done with them: X25519 (RFC 7748), BLAKE2b
// (RFC 7693), ChaCha20 with a counter of 64 bits, and XChaCha20-Poly1305, all of libsodium.
#ifndef MEGATRON_FEDERATED_ROUND_KEYS_H_
#define MEGATRON_FEDERATED_ROUND_KEYS_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace megatron {

constexpr int kKeyBytes = 32;
using Key = std::array<uint8_t, kKeyBytes>;

// A key pair of X25519.
struct KeyPair {
  Key secret;
  Key public_key;
};

// Returns bytes of the system's generator, which cannot be guessed.
Key RandomKey();
KeyPair MakeKeyPair();
Key PublicKeyOf(const Key& secret);

// Returns the key that the owners of two pairs have in common. It is a hash of what they agree on,
// of both public keys and of `purpose`, so that keys for different purposes have nothing in common.
// Returns kInvalidArgument for a public key with which all agree on the same.
absl::StatusOr<Key> AgreeOnKey(const KeyPair& own, const Key& other_public,
                               absl::string_view purpose);

// Returns a hash from which nobody finds `secret`, if that cannot be guessed.
Key DigestOf(const Key& secret, absl::string_view purpose);

// Encrypts and authenticates `text`; `purpose` is authenticated too.
std::string Seal(const Key& key, absl::string_view text, absl::string_view purpose);
// Returns the text, or kInvalidArgument for bytes that were not sealed with this key and purpose.
absl::StatusOr<std::string> Unseal(const Key& key, absl::string_view sealed,
                                   absl::string_view purpose);

// A stream of words that is a function of `seed`. A seed is used for one stream only. Word i is the
// little-endian word i of ChaCha20's key stream with a nonce of zeros.
//
// Adds the words [first, first + values.size()) to `values`, modulo 2^32.
void AddStream(const Key& seed, int64_t first, absl::Span<uint32_t> values);
// Subtracts them.
void SubtractStream(const Key& seed, int64_t first, absl::Span<uint32_t> values);

}  // namespace megatron

#endif  // MEGATRON_FEDERATED_ROUND_KEYS_H_
