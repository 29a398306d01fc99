// Joins indexed datasets into one: their sequences and documents one behind the other, byte for
// byte as Megatron's tools/merge_datasets.py does.
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
  int64_t bytes = 0;  // of tokens
};

// The prefixes of all datasets in a folder, in the order of their names' bytes, which is the order
// in which Megatron merges them. Other files are passed over; a .bin without its .idx, or the other
// way round, is kDataLoss: it is what an unfinished copy leaves.
absl::StatusOr<std::vector<std::string>> FindDatasets(FileSystem& fs, const std::string& folder);

// Writes the datasets of `prefixes`, in this order, as one to `output_prefix`, whole or not at all.
// The tokens go through a buffer of a megabyte; the index is held in memory, 12 bytes a sequence
// and 8 a document. All must store tokens alike, and all or none have modes; kInvalidArgument names
// the first that differs, kDataLoss the first whose .bin has more than its sequences. `keep_going`
// is called now and then; kCancelled where it returns false.
absl::StatusOr<MergeReport> MergeDatasets(absl::Span<const std::string> prefixes,
                                          const std::string& output_prefix, FileSystem& fs,
                                          absl::FunctionRef<bool(const MergeReport&)> keep_going);

}  // namespace megatron

#endif  // MEGATRON_DATA_INDEXED_MERGE_DATASETS_H_
