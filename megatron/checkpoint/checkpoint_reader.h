// Reading a checkpoint: any rectangle of any tensor, whatever layout wrote it. Every byte handed
// out has been checked against its CRC-32C.
//
//   MEGATRON_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(fs,
//   found.directory)); for (const ShardedTensor& tensor : my_blocks)
//   MEGATRON_RETURN_IF_ERROR(reader.Load(tensor)); MEGATRON_ASSIGN_OR_RETURN(const int64_t samples,
//   reader.Int("consumed_train_samples"));
//
// Errors: kDataLoss where the files are damaged, incomplete or mixed up, with file, tensor and byte
// range; kFailedPrecondition where a sound checkpoint isn't the one expected (missing tensor, other
// type or shape).
//
// A reader is immutable; any number of threads may read at once.
#ifndef MEGATRON_CHECKPOINT_CHECKPOINT_READER_H_
#define MEGATRON_CHECKPOINT_CHECKPOINT_READER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/checkpoint/manifest.h"

namespace megatron {

class CheckpointReader {
 public:
  // Opens one iteration's directory. The manifest is checked wholly, shards for presence, size and
  // header; the contents are when they are read. `fs` must outlive the reader.
  static absl::StatusOr<CheckpointReader> Open(FileSystem& fs, const std::string& directory);

  // A checkpoint whose shards do not lie in one directory, or one shard of it: `open` gives the
  // file of a shard that `manifest`, which has been checked, lists. Messages call the whole `name`,
  // and it is directory() here.
  using ShardOpener = std::function<absl::StatusOr<std::unique_ptr<RandomAccessFile>>(int index)>;
  static CheckpointReader OfParts(const std::string& name, Manifest manifest, ShardOpener open);

  const std::string& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }

  // Fills block.tensor with the block's elements. The checkpoint's tensor must have its type and
  // global shape: nothing is converted, padded or cut. `replica` means nothing here. After an error
  // the block's contents are undefined.
  absl::Status Load(const ShardedTensor& block) const;

  // Fills `out` (contiguous, on the CPU) with the rectangle of out's shape that begins at `offset`.
  absl::Status Read(absl::string_view name, const Shape& offset, const Tensor& out) const;

  // The saved value of that name; kFailedPrecondition where there is none.
  absl::StatusOr<int64_t> Int(const std::string& name) const;
  absl::StatusOr<double> Float(const std::string& name) const;
  absl::StatusOr<std::string> String(const std::string& name) const;

  // Reads everything and gives each piece's first error; empty when all is sound.
  std::vector<absl::Status> Verify() const;

 private:
  CheckpointReader(std::string directory, Manifest manifest, ShardOpener open)
      : directory_(std::move(directory)), manifest_(std::move(manifest)), open_(std::move(open)) {}

  absl::StatusOr<const TensorEntry*> Find(absl::string_view name) const;
  absl::Status CheckFiles(FileSystem& fs) const;
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> OpenShard(int index) const;
  std::string ShardPath(int index) const;
  template <typename Value>
  absl::StatusOr<Value> FindValue(const std::map<std::string, Value>& values,
                                  const std::string& name) const;
  // Copies the elements that the piece has of the block.
  absl::Status ReadPiece(const TensorEntry& tensor, const Piece& piece, const Rectangle& block,
                         char* out) const;
  absl::Status VerifyPiece(const TensorEntry& tensor, const Piece& piece) const;

  std::string directory_;
  Manifest manifest_;
  ShardOpener open_;
};

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_CHECKPOINT_READER_H_
