// Formats memory by name as a table: what was held at the peak, beside what was planned.
#ifndef MEGATRON_TRAIN_PROFILE_MEMORY_TABLE_H_
#define MEGATRON_TRAIN_PROFILE_MEMORY_TABLE_H_

#include <cstdint>
#include <map>
#include <string>

#include "megatron/tensor/device.h"

namespace megatron {

using BytesByName = std::map<std::string, int64_t>;

// Returns the table, sorted by bytes, the most first. Names that held nothing and planned nothing
// are left out.
std::string FormatMemoryTable(const BytesByName& at_peak, const BytesByName& planned);

// Returns a line about the whole process: its peak resident memory, and the GPU memory that is in
// use by any process. Empty if the system does not tell.
std::string FormatProcessMemory(Device device);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PROFILE_MEMORY_TABLE_H_
