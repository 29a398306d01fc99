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

// The crc32 instruction takes 8 bytes a cycle but needs 3 cycles, so three streams run side by
// side. Abseil has this too, but only where everything is compiled for SSE 4.2.
constexpr size_t kStreamBytes = 32768;
constexpr size_t kBlockBytes = 3 * kStreamBytes;

uint64_t Load(const char* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// Extends by blocks of kBlockBytes and removes them from `data`.
__attribute__((target("sse4.2"))) uint32_t ExtendByBlocks(uint32_t crc, absl::string_view* data) {
  while (data->size() >= kBlockBytes) {
    const char* const first = data->data();
    // The register holds the complement of the checksum.
    uint64_t a = crc ^ 0xffffffffu, b = 0xffffffffu, c = 0xffffffffu;
    for (size_t i = 0; i < kStreamBytes; i += sizeof(uint64_t)) {
      a = _mm_crc32_u64(a, Load(first + i));
      b = _mm_crc32_u64(b, Load(first + kStreamBytes + i));
      c = _mm_crc32_u64(c, Load(first + 2 * kStreamBytes + i));
    }
    const auto finished = [](uint64_t state) {
      return absl::crc32c_t{static_cast<uint32_t>(state) ^ 0xffffffffu};
    };
    const absl::crc32c_t two = absl::ConcatCrc32c(finished(a), finished(b), kStreamBytes);
    crc = static_cast<uint32_t>(absl::ConcatCrc32c(two, finished(c), kStreamBytes));
    data->remove_prefix(kBlockBytes);
  }
  return crc;
}

bool HasCrcInstruction() {
  static const bool has = __builtin_cpu_supports("sse4.2");
  return has;
}

#else

uint32_t ExtendByBlocks(uint32_t crc, absl::string_view*) { return crc; }
bool HasCrcInstruction() { return false; }

#endif

}  // namespace

uint32_t Crc32c(absl::string_view data) { return ExtendCrc32c(0, data); }

uint32_t ExtendCrc32c(uint32_t crc, absl::string_view data) {
  if (HasCrcInstruction()) crc = ExtendByBlocks(crc, &data);
  return ExtendPortably(crc, data);
}

}  // namespace megatron
