// Joins indexed datasets into one: concatenates their sequences and documents, byte for byte as
// Megatron's tools/merge_datasets.py does.
#ifndef MEGATRON_DATA_INDEXED_MERGE_DATASETS_H_
#define MEGATRON_DATA_INDEXED_MERGE_DATASETS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/base/file_system.h"

namespace megatron {

struct MergeReport {
  int64_t datasets = 0;
  int64_t documents = 0;
  int64_t sequences = 0;
  int64_t tokens = 0;
  int64_t bytes = 0;  // bytes of all tokens
};

// Returns the prefixes of all datasets in a folder in the byte order of their names, which is the
// order in which Megatron merges them. Other files are ignored. A .bin without its .idx, or an .idx
// without its .bin, is kDataLoss: an unfinished copy leaves such a file.
absl::StatusOr<std::vector<std::string>> FindDatasets(FileSystem& fs, const std::string& folder);

// Writes the datasets of `prefixes`, in this order, as one to `output_prefix`, whole or not at all.
// The tokens go through a buffer of a megabyte; the index is held in memory, 12 bytes per sequence
// and 8 per document. All must have the same token type, and either all or none have modes;
// otherwise kInvalidArgument names the first that differs. kDataLoss names the first whose .bin
// file has bytes outside its sequences. `keep_going` is called regularly; if it returns false, the
// result is kCancelled.
absl::StatusOr<MergeReport> MergeDatasets(absl::Span<const std::string> prefixes,
                                          const std::string& output_prefix, FileSystem& fs,
                                          absl::FunctionRef<bool(const MergeReport&)> keep_going);

}  // namespace megatron

#endif  // MEGATRON_DATA_INDEXED_MERGE_DATASETS_H_
