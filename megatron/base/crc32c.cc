#include "megatron/base/crc32c.h"

#include <cstddef>
#include <cstring>

#include "absl/crc/crc32c.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace megatron {
namespace {

uint32_t ExtendPortably(uint32_t crc, absl::string_view data) {
  return static_cast<uint32_t>(absl::ExtendCrc32c(absl::crc32c_t{crc}, data));
}

#if defined(__x86_64__)

// The crc32 instruction takes 8 bytes a cycle but has a latency of 3 cycles, so three streams run
// side by side. Abseil does this too, but only in programs compiled for SSE 4.2 throughout.
// Registers hold the complement of the checksum.
constexpr size_t kStreamBytes = 8192;

uint64_t Load(const char* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

absl::crc32c_t ToChecksum(uint64_t state) { return absl::crc32c_t{~static_cast<uint32_t>(state)}; }

// Extends `crc` by 3 * kStreamBytes bytes.
__attribute__((target("sse4.2"))) uint32_t ExtendByStreams(uint32_t crc, const char* data) {
  uint64_t a = static_cast<uint32_t>(~crc), b = 0xffffffffu, c = 0xffffffffu;
  for (size_t i = 0; i < kStreamBytes; i += sizeof(uint64_t)) {
    a = _mm_crc32_u64(a, Load(data + i));
    b = _mm_crc32_u64(b, Load(data + kStreamBytes + i));
    c = _mm_crc32_u64(c, Load(data + 2 * kStreamBytes + i));
  }
  const absl::crc32c_t two = absl::ConcatCrc32c(ToChecksum(a), ToChecksum(b), kStreamBytes);
  return static_cast<uint32_t>(absl::ConcatCrc32c(two, ToChecksum(c), kStreamBytes));
}

__attribute__((target("sse4.2"))) uint32_t ExtendByInstruction(uint32_t crc,
                                                               absl::string_view data) {
  for (; data.size() >= 3 * kStreamBytes; data.remove_prefix(3 * kStreamBytes)) {
    crc = ExtendByStreams(crc, data.data());
  }
  uint64_t state = static_cast<uint32_t>(~crc);
  for (; data.size() >= sizeof(uint64_t); data.remove_prefix(sizeof(uint64_t))) {
    state = _mm_crc32_u64(state, Load(data.data()));
  }
  for (const char byte : data) {
    state = _mm_crc32_u8(static_cast<uint32_t>(state), static_cast<unsigned char>(byte));
  }
  return static_cast<uint32_t>(ToChecksum(state));
}

bool HasCrcInstruction() {
  static const bool has = __builtin_cpu_supports("sse4.2");
  return has;
}

#else

uint32_t ExtendByInstruction(uint32_t crc, absl::string_view data) {
  return ExtendPortably(crc, data);
}
bool HasCrcInstruction() { return false; }

#endif

}  // namespace

uint32_t Crc32c(absl::string_view data) { return ExtendCrc32c(0, data); }

uint32_t ExtendCrc32c(uint32_t crc, absl::string_view data) {
  return HasCrcInstruction() ? ExtendByInstruction(crc, data) : ExtendPortably(crc, data);
}

}  // namespace megatron
