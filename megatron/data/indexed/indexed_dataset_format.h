// The constants of Megatron's .idx files, for their reader and their writer. docs/data_format.md
// describes the whole format.
#ifndef MEGATRON_DATA_INDEXED_INDEXED_DATASET_FORMAT_H_
#define MEGATRON_DATA_INDEXED_INDEXED_DATASET_FORMAT_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace megatron {

inline constexpr absl::string_view kIndexMagic("MMIDIDX\0\0", 9);
inline constexpr uint64_t kIndexVersion = 1;
inline constexpr int64_t kIndexVersionOffset = 9;
inline constexpr int64_t kIndexTypeOffset = 17;
inline constexpr int64_t kIndexSequenceCountOffset = 18;
inline constexpr int64_t kIndexDocumentCountOffset = 26;
inline constexpr int64_t kIndexHeaderSize = 34;

}  // namespace megatron

#endif  // MEGATRON_DATA_INDEXED_INDEXED_DATASET_FORMAT_H_
