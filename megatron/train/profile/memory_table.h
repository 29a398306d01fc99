// Memory by name as a table: what was held at the peak, beside what was planned.
#ifndef MEGATRON_TRAIN_PROFILE_MEMORY_TABLE_H_
#define MEGATRON_TRAIN_PROFILE_MEMORY_TABLE_H_

#include <cstdint>
#include <map>
#include <string>

#include "megatron/tensor/device.h"

namespace megatron {

using BytesByName = std::map<std::string, int64_t>;

// Most bytes first; names that held nothing and planned nothing are left out.
std::string FormatMemoryTable(const BytesByName& at_peak, const BytesByName& planned);

// Of the whole process: its resident memory at most, and what is taken of the GPU, by whomever.
// Empty where the system does not tell.
std::string FormatProcessMemory(Device device);

}  // namespace megatron

#endif  // MEGATRON_TRAIN_PROFILE_MEMORY_TABLE_H_
