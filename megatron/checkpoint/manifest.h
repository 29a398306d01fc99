// The manifest of a checkpoint: what it holds and where, with a checksum for every byte of it.
//
// Vocabulary. A *shard* is the file that one rank wrote. A *piece* is the part of one shard that
// holds one rectangle of one tensor. A piece is read in *chunks* of chunk_bytes (the last one
// shorter), each with its CRC-32C. A *part* is a manifest that lists one rank's shard only; merging
// the parts of all ranks gives the manifest of the checkpoint.
//
// A manifest in a file is JSON, in exactly one spelling: docs/checkpoint_format.md. ParseManifest
// accepts that spelling alone, so that SerializeManifest(*ParseManifest(text)) == text, and is made
// for hostile text: it needs memory in proportion to the text and checks every size before it is
// used.
#ifndef MEGATRON_CHECKPOINT_MANIFEST_H_
#define MEGATRON_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/checkpoint/rectangle.h"
#include "megatron/tensor/dtype.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

inline constexpr int kCheckpointFormatVersion = 1;
// Larger manifests are refused, by saves before they commit. The checksums of a trillion parameters
// with their moments, in 4 MiB chunks, take 25 MiB; a piece takes about 120 bytes, so that each of
// 40,000 ranks may have hundreds.
inline constexpr int64_t kMaxManifestBytes = int64_t{4} << 30;

struct Piece {
  int shard = 0;
  int64_t offset = 0;  // place of its first byte in the shard's file
  Rectangle rectangle;
  std::vector<uint32_t> crcs;  // one per chunk
};

struct TensorEntry {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;                // shape of the global tensor
  std::vector<Piece> pieces;  // ascending by shard and offset
};

struct ShardEntry {
  int index = 0;
  int64_t bytes = 0;  // the file's size
};

struct Manifest {
  std::string run_id;
  int64_t iteration = 0;
  int64_t chunk_bytes = 0;
  int shard_count = 0;
  // Everything training needs that isn't a tensor: consumed samples, loss scale, counters.
  std::map<std::string, int64_t> ints;
  std::map<std::string, double> floats;
  std::map<std::string, std::string> strings;  // any bytes
  std::vector<ShardEntry> shards;              // ascending; a part has one, a whole manifest all
  std::vector<TensorEntry> tensors;            // ascending by name
};

// 1 to 256 of A-Z a-z 0-9 . _ / -, without ".." and without / at either end.
bool IsValidName(absl::string_view name);
// A hash: 8 to 64 lower-case hexadecimal digits.
bool IsValidRunId(absl::string_view run_id);

int64_t PieceBytes(const TensorEntry& tensor, const Piece& piece);

// The entry of that name, or null.
const TensorEntry* FindTensor(const Manifest& manifest, absl::string_view name);

// Checks that the manifest describes its shards without gap or overlap, each piece lies inside its
// tensor, and no size overflows. Errors name the tensor or shard.
absl::Status CheckManifest(const Manifest& manifest);
// Also checks that every shard is there and that each tensor's elements are stored exactly once.
// Expects a checked manifest.
absl::Status CheckComplete(const Manifest& manifest);

// Joins parts 0 .. shard_count - 1, in this order, into a complete manifest. Ints, floats and
// strings are part 0's. An error means that the ranks did not save one state in one layout.
absl::StatusOr<Manifest> MergeParts(const std::vector<Manifest>& parts);

std::string SerializeManifest(const Manifest& manifest);

// The manifest in `text`, checked by CheckManifest. Errors say where in the text.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_MANIFEST_H_
