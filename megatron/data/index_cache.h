// Arrays that take long to compute, kept in files for later runs and for the other processes of
// this one. For example, the GPT index of a training split is these files in one folder, named as
// Megatron names its own:
//
//   <md5>-GPTDataset-train-description.txt
//   <md5>-GPTDataset-train-document_index.npy
//   <md5>-GPTDataset-train-sample_index.npy
//   <md5>-GPTDataset-train-shuffle_index.npy
//   <md5>-GPTDataset-train-checksums.txt
//
// An *entry* consists of everything that one description determines:
// `<md5>-<kind>-description.txt`, whose digest is <md5>, and `<md5>-<kind>-<name>.npy` for each
// array. `<md5>-<kind>-checksums.txt`, which Megatron does not have, is written last and holds the
// size and CRC-32C of the others. An entry is used if all of it agrees with its checksums and its
// description is the requested one; anything else, also an entry that Megatron wrote, is computed
// again and replaced.
//
// Files are renamed into place when they are complete, so any process may end at any moment, and a
// file that others have mapped does not change under them. The process that computes an entry holds
// a lock on the folder (flock on `.lock`): if several processes want the same entry, one computes
// it and the others wait. If the folder cannot be written or locked, the arrays stay in memory and
// a warning says why.
//
// Any number of threads may use one cache; they wait for each other in the same way.
#ifndef MEGATRON_DATA_INDEX_CACHE_H_
#define MEGATRON_DATA_INDEX_CACHE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "megatron/base/file_system.h"
#include "megatron/data/npy.h"

namespace megatron {

struct IndexCacheKey {
  std::string kind;         // "GPTDataset-train"
  std::string description;  // text about everything that determines the arrays, and nothing else
  std::vector<std::string> names;  // names of the arrays, such as "document_index"
};

// Arrays in the order of the key's names.
struct IndexArrays {
  std::vector<NpyArray> arrays;
  std::shared_ptr<const void> storage;  // owns the bytes that the arrays point into
};

class IndexCache {
 public:
  // `fs` writes the files. They are read by mapping, so `fs` must be the operating system's file
  // system or wrap it.
  IndexCache(FileSystem& fs, std::string directory) : fs_(fs), directory_(std::move(directory)) {}

  // Returns the path of one file of an entry; `name` includes the extension ("document_index.npy").
  std::string PathOf(const IndexCacheKey& key, absl::string_view name) const;

  // Returns a complete entry, or kNotFound if there is none.
  absl::StatusOr<IndexArrays> Load(const IndexCacheKey& key) const;

  // Writes an entry. If a file cannot be written, this fails and leaves no entry.
  absl::Status Store(const IndexCacheKey& key, const IndexArrays& arrays) const;

  // Calls Load, or else `build` and Store. `check` tells whether loaded arrays have the types and
  // shapes that the key calls for. Fails only if `build` fails.
  absl::StatusOr<IndexArrays> LoadOrBuild(
      const IndexCacheKey& key, absl::FunctionRef<absl::Status(const IndexArrays&)> check,
      absl::FunctionRef<absl::StatusOr<IndexArrays>()> build) const;

 private:
  absl::Status StoreFiles(const IndexCacheKey& key, const IndexArrays& arrays) const;
  absl::Status StoreArray(const std::string& path, const NpyArray& array,
                          std::string* header) const;
  void RemoveEntry(const IndexCacheKey& key) const;

  FileSystem& fs_;
  const std::string directory_;
};

absl::Status CheckArray(const NpyArray& array, absl::string_view type,
                        absl::Span<const int64_t> shape);

// Returns the elements of an array as values of type T, or as structs that consist of them.
template <typename T>
absl::Span<const T> ArrayValues(const NpyArray& array) {
  CHECK_EQ(array.data.size() % sizeof(T), 0u);
  CHECK_EQ(reinterpret_cast<uintptr_t>(array.data.data()) % alignof(T), 0u);
  return {reinterpret_cast<const T*>(array.data.data()), array.data.size() / sizeof(T)};
}

template <typename T>
absl::string_view ArrayBytes(absl::Span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace megatron

#endif  // MEGATRON_DATA_INDEX_CACHE_H_
