#include "megatron/base/crc32c.h"

#include "absl/crc/crc32c.h"

namespace megatron {

uint32_t Crc32c(absl::string_view data) { return static_cast<uint32_t>(absl::ComputeCrc32c(data)); }

uint32_t ExtendCrc32c(uint32_t crc, absl::string_view data) {
  return static_cast<uint32_t>(absl::ExtendCrc32c(absl::crc32c_t{crc}, data));
}

}  // namespace megatron
