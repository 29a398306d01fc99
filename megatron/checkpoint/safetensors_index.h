// A model in several .safetensors files: the index that says which tensor is in which file.
//
//   model.safetensors.index.json
//   model-00001-of-00002.safetensors
//   model-00002-of-00002.safetensors
//
// A directory without an index holds model.safetensors alone.
#ifndef MEGATRON_CHECKPOINT_SAFETENSORS_INDEX_H_
#define MEGATRON_CHECKPOINT_SAFETENSORS_INDEX_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/checkpoint/safetensors_header.h"

namespace megatron {

inline constexpr char kSafetensorsFileName[] = "model.safetensors";
inline constexpr char kSafetensorsIndexFileName[] = "model.safetensors.index.json";
inline constexpr int64_t kMaxSafetensorsIndexBytes = int64_t{64} << 20;

// Files by the tensors that are in them.
using SafetensorsIndex = std::map<std::string, std::string>;

// Parses text that may be hostile: duplicate keys are refused, and names of files that are more
// than a name (of letters, digits, '.', '_' and '-', ending in .safetensors). What "metadata" says
// is not needed and not believed. kDataLoss says what is wrong.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view text);

// The text of the index file. `total_bytes` are those of all tensors.
std::string SerializeSafetensorsIndex(const SafetensorsIndex& index, int64_t total_bytes);

// Returns "model-00001-of-00002.safetensors" for index 0 of 2; "model.safetensors" for the only
// one.
std::string SafetensorsShardName(size_t index, size_t count);

// Shares tensors out over files, in order, each with at most `max_bytes` of them unless one tensor
// alone has more. At least one file.
std::vector<std::vector<SafetensorsTensor>> PlanSafetensorsShards(
    const std::vector<SafetensorsTensor>& tensors, int64_t max_bytes);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_SAFETENSORS_INDEX_H_
