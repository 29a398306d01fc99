// Files with secrets.
#ifndef MEGATRON_BASE_PRIVATE_FILE_H_
#define MEGATRON_BASE_PRIVATE_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace megatron {

// Returns what is in a file that nobody but its owner may read: kPermissionDenied if others may,
// kResourceExhausted if it has more than `max_bytes`.
absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, size_t max_bytes);

}  // namespace megatron

#endif  // MEGATRON_BASE_PRIVATE_FILE_H_
