// CRC-32C (Castagnoli): the checksum of checkpoint files. It finds every burst of up to 32 flipped
// bits, and costs a small part of what writing the same bytes does (hardware instructions are used
// if the processor has them).
//
// The value is the plain one of RFC 3720: Crc32c("123456789") == 0xe3069283.
#ifndef MEGATRON_BASE_CRC32C_H_
#define MEGATRON_BASE_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace megatron {

uint32_t Crc32c(absl::string_view data);

// Returns the checksum of a + b, given `crc`, the checksum of a, and the bytes b.
uint32_t ExtendCrc32c(uint32_t crc, absl::string_view data);

}  // namespace megatron

#endif  // MEGATRON_BASE_CRC32C_H_
