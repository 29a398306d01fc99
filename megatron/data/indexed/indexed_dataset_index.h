// Finds the parts of an .idx file and checks everything that readers rely on. docs/data_format.md
// describes the format byte by byte.
#ifndef MEGATRON_DATA_INDEXED_INDEXED_DATASET_INDEX_H_
#define MEGATRON_DATA_INDEXED_INDEXED_DATASET_INDEX_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/data/indexed/token_type.h"

namespace megatron {

// The parts of an .idx file after the checks. The views point into the file's bytes.
struct ParsedIndex {
  TokenType token_type;
  int64_t num_sequences = 0;
  int64_t num_documents = 0;
  const char* lengths = nullptr;    // num_sequences × i32
  const char* offsets = nullptr;    // num_sequences × i64, in bytes of the .bin file
  const char* documents = nullptr;  // (num_documents + 1) × i64, in sequences
  const char* modes = nullptr;      // num_sequences × i8; null except in multimodal datasets
};

// Parses `index`, the bytes of an .idx file, for a .bin file of `bin_size` bytes. Errors give the
// offset in `index`.
absl::StatusOr<ParsedIndex> ParseIndex(absl::string_view index, int64_t bin_size);

}  // namespace megatron

#endif  // MEGATRON_DATA_INDEXED_INDEXED_DATASET_INDEX_H_
