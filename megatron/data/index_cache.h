// Arrays that take long to compute, kept in files for later runs and for the other processes of
// this one.
//
// An *entry* is what one description determines. It lies in one folder as Megatron lays its own
// out:
// `<md5>-<kind>-description.txt`, whose digest is <md5>, and `<md5>-<kind>-<name>.npy` for each
// array. Ours has `<md5>-<kind>-checksums.txt` besides, written last: size and CRC-32C of the
// others. An entry is believed where all of it is as its checksums say and its description is the
// one asked for; anything else, Megatron's own files among it, is computed anew and replaced.
//
// Files are renamed into place when they are whole, so any process may end at any moment, and a
// file that others have mapped does not change under them. Whoever computes holds a lock on the
// folder (flock on `.lock`), so that of several processes that want one entry one computes it and
// the others wait. Where the folder cannot be written, or not be locked, the arrays stay in memory
// and a warning says why.
//
// Any number of threads may use one cache; they too wait for each other.
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
  std::string kind;                // "GPTDataset-train"
  std::string description;         // of all that determines the arrays, and of nothing else
  std::vector<std::string> names;  // of the arrays: "document_index"
};

// One array for each name of the key, in that order.
struct IndexArrays {
  std::vector<NpyArray> arrays;
  std::shared_ptr<const void> storage;  // what they point into
};

class IndexCache {
 public:
  // `fs` is where files are written. They are read by mapping, so it must be the operating system's
  // or lead there.
  IndexCache(FileSystem& fs, std::string directory) : fs_(fs), directory_(std::move(directory)) {}

  // `name` with its ending: "document_index.npy".
  std::string PathOf(const IndexCacheKey& key, absl::string_view name) const;

  // An entry that is there and whole. kNotFound where there is none.
  absl::StatusOr<IndexArrays> Load(const IndexCacheKey& key) const;

  // Fails where a file cannot be written; then there is no entry.
  absl::Status Store(const IndexCacheKey& key, const IndexArrays& arrays) const;

  // Load, or else `build` and Store. `check` says whether loaded arrays have the types and shapes
  // that the key calls for. Fails where `build` does, and never else.
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

// The numbers of an array as numbers of type T, or structs that are made of nothing but them.
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
