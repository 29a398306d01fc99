// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), for proving the knowledge of a secret.
#ifndef MEGATRON_COMM_SOCKET_HMAC_SHA256_H_
#define MEGATRON_COMM_SOCKET_HMAC_SHA256_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace megatron {

constexpr int kSha256Bytes = 32;
using Sha256Digest = std::array<uint8_t, kSha256Bytes>;

Sha256Digest Sha256(absl::string_view bytes);
Sha256Digest HmacSha256(absl::string_view key, absl::string_view message);

absl::string_view AsBytes(const Sha256Digest& digest);

// Takes the same time wherever the first difference is: comparing a proof leaks nothing of it.
bool EqualInConstantTime(absl::string_view a, absl::string_view b);

// Returns bytes of the system's generator, which cannot be guessed.
std::string RandomBytes(int count);

}  // namespace megatron

#endif  // MEGATRON_COMM_SOCKET_HMAC_SHA256_H_
