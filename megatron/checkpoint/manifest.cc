#include "megatron/checkpoint/manifest.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/shard_header.h"

namespace megatron {
namespace {

constexpr int kMaxShards = 1 << 20;

// Sizes of files, and so of tensors, stay below this: sums of two never overflow.
constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max() / 4;

absl::Status Damaged(absl::string_view what) { return absl::DataLossError(what); }

absl::Status CheckTensor(const TensorEntry& tensor) {
  if (!IsValidName(tensor.name)) return Damaged("a tensor's name is not allowed");
  int64_t bytes = SizeOf(tensor.dtype);
  bool empty = false;
  for (int64_t dim : tensor.shape) {
    if (dim < 0) return Damaged(absl::StrCat("tensor '", tensor.name, "' has a negative size"));
    if (dim == 0) empty = true;
    if (dim > 0 && bytes > kMaxBytes / dim) {
      return Damaged(absl::StrCat("tensor '", tensor.name, "' is impossibly large"));
    }
    if (dim > 0) bytes *= dim;
  }
  if (empty && !tensor.pieces.empty()) {
    return Damaged(absl::StrCat("tensor '", tensor.name, "' has pieces but no elements"));
  }
  return absl::OkStatus();
}

absl::Status CheckPiece(const Manifest& manifest, const TensorEntry& tensor, const Piece& piece) {
  if (!IsInside(piece.rectangle, tensor.shape) || piece.rectangle.extent.numel() == 0) {
    return Damaged(
        absl::StrCat("tensor '", tensor.name, "' has a piece that is empty or lies outside of it"));
  }
  const int64_t bytes = PieceBytes(tensor, piece);
  const int64_t chunks = (bytes - 1) / manifest.chunk_bytes + 1;
  if (static_cast<int64_t>(piece.crcs.size()) != chunks) {
    return Damaged(absl::StrCat("tensor '", tensor.name, "' has ", piece.crcs.size(),
                                " checksums in a piece of ", chunks, " chunks"));
  }
  return absl::OkStatus();
}

struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
  const TensorEntry* tensor = nullptr;
};

// Checks that the intervals fill the shard's file from the end of its header to its own end.
absl::Status CheckShard(const ShardEntry& shard, std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  int64_t position = kShardHeaderBytes;
  for (const Interval& interval : intervals) {
    if (interval.begin != position) {
      return Damaged(absl::StrCat("shard ", shard.index, " has a gap or an overlap at byte ",
                                  position, ", before tensor '", interval.tensor->name, "'"));
    }
    if (interval.end > kMaxBytes) return Damaged("a shard is impossibly large");
    position = interval.end;
  }
  if (position != shard.bytes) {
    return Damaged(absl::StrCat("shard ", shard.index, " has ", shard.bytes,
                                " bytes, its pieces end at byte ", position));
  }
  return absl::OkStatus();
}

absl::Status CheckHead(const Manifest& manifest) {
  if (!IsValidRunId(manifest.run_id)) return Damaged("the run id is not a hash");
  if (manifest.iteration < 0) return Damaged("the iteration is negative");
  if (manifest.chunk_bytes <= 0) return Damaged("chunk_bytes is not positive");
  if (manifest.shard_count <= 0 || manifest.shard_count > kMaxShards) {
    return Damaged(absl::StrCat("shard_count is not between 1 and ", kMaxShards));
  }
  int previous = -1;
  for (const ShardEntry& shard : manifest.shards) {
    if (shard.index <= previous || shard.index >= manifest.shard_count) {
      return Damaged(absl::StrCat("shard ", shard.index, " is out of place"));
    }
    previous = shard.index;
  }
  return absl::OkStatus();
}

absl::Status CheckNames(const Manifest& manifest) {
  const auto check = [](const auto& map) {
    for (const auto& entry : map) {
      if (!IsValidName(entry.first)) return Damaged("the name of a value is not allowed");
    }
    return absl::OkStatus();
  };
  MEGATRON_RETURN_IF_ERROR(check(manifest.ints));
  MEGATRON_RETURN_IF_ERROR(check(manifest.floats));
  return check(manifest.strings);
}

// Adds the part's pieces to `tensors`, which is ascending by name as the part's are.
absl::Status MergeTensors(const Manifest& part, std::map<std::string, TensorEntry>* tensors) {
  for (const TensorEntry& tensor : part.tensors) {
    const auto [entry, is_new] = tensors->try_emplace(tensor.name, tensor);
    if (is_new) continue;
    if (entry->second.dtype != tensor.dtype || entry->second.shape != tensor.shape) {
      return absl::FailedPreconditionError(
          absl::StrCat("tensor '", tensor.name, "': shard ", part.shards[0].index,
                       " gives it another type or global shape than the shards before it"));
    }
    std::vector<Piece>& pieces = entry->second.pieces;
    pieces.insert(pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
  }
  return absl::OkStatus();
}

absl::Status CheckBelongTogether(const Manifest& first, const Manifest& part, int index) {
  if (part.run_id != first.run_id || part.iteration != first.iteration ||
      part.chunk_bytes != first.chunk_bytes || part.shard_count != first.shard_count ||
      part.shards.size() != 1 || part.shards[0].index != index) {
    return absl::DataLossError(
        absl::StrCat("part ", index, " does not belong to the save of the others"));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsValidName(absl::string_view name) {
  if (name.empty() || name.size() > 256) return false;
  if (name.front() == '/' || name.back() == '/' || absl::StrContains(name, "..")) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::string_view("._/-").find(c) != absl::string_view::npos;
  });
}

bool IsValidRunId(absl::string_view run_id) {
  if (run_id.size() < 8 || run_id.size() > 64) return false;
  return run_id.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

int64_t PieceBytes(const TensorEntry& tensor, const Piece& piece) {
  return piece.rectangle.extent.numel() * SizeOf(tensor.dtype);
}

const TensorEntry* FindTensor(const Manifest& manifest, absl::string_view name) {
  const auto entry = std::lower_bound(
      manifest.tensors.begin(), manifest.tensors.end(), name,
      [](const TensorEntry& tensor, absl::string_view wanted) { return tensor.name < wanted; });
  return entry != manifest.tensors.end() && entry->name == name ? &*entry : nullptr;
}

absl::Status CheckManifest(const Manifest& manifest) {
  MEGATRON_RETURN_IF_ERROR(CheckHead(manifest));
  MEGATRON_RETURN_IF_ERROR(CheckNames(manifest));
  std::map<int, std::vector<Interval>> intervals;
  for (const ShardEntry& shard : manifest.shards) intervals[shard.index];
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const TensorEntry& tensor = manifest.tensors[i];
    MEGATRON_RETURN_IF_ERROR(CheckTensor(tensor));
    if (i > 0 && manifest.tensors[i - 1].name >= tensor.name) {
      return Damaged(absl::StrCat("tensor '", tensor.name, "' is out of order"));
    }
    std::pair<int, int64_t> previous(-1, 0);
    for (const Piece& piece : tensor.pieces) {
      if (previous >= std::make_pair(piece.shard, piece.offset)) {
        return Damaged(absl::StrCat("tensor '", tensor.name, "' has pieces out of order"));
      }
      previous = {piece.shard, piece.offset};
      MEGATRON_RETURN_IF_ERROR(CheckPiece(manifest, tensor, piece));
      const auto shard = intervals.find(piece.shard);
      if (shard == intervals.end() || piece.offset < 0 || piece.offset > kMaxBytes) {
        return Damaged(absl::StrCat("tensor '", tensor.name, "' has a piece in no shard"));
      }
      shard->second.push_back({piece.offset, piece.offset + PieceBytes(tensor, piece), &tensor});
    }
  }
  for (const ShardEntry& shard : manifest.shards) {
    MEGATRON_RETURN_IF_ERROR(CheckShard(shard, std::move(intervals[shard.index])));
  }
  return absl::OkStatus();
}

absl::Status CheckComplete(const Manifest& manifest) {
  if (static_cast<int>(manifest.shards.size()) != manifest.shard_count) {
    return Damaged(
        absl::StrCat("it lists ", manifest.shards.size(), " shards of ", manifest.shard_count));
  }
  for (const TensorEntry& tensor : manifest.tensors) {
    std::vector<Rectangle> rectangles;
    for (const Piece& piece : tensor.pieces) rectangles.push_back(piece.rectangle);
    if (!CoverExactlyOnce(rectangles, tensor.shape)) {
      return Damaged(absl::StrCat("tensor '", tensor.name,
                                  "' has elements that are stored not at all or more than once"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> MergeParts(const std::vector<Manifest>& parts) {
  Manifest merged = parts[0];
  merged.shards.clear();
  merged.tensors.clear();
  std::map<std::string, TensorEntry> tensors;
  for (size_t i = 0; i < parts.size(); ++i) {
    MEGATRON_RETURN_IF_ERROR(CheckBelongTogether(parts[0], parts[i], static_cast<int>(i)));
    MEGATRON_RETURN_IF_ERROR(MergeTensors(parts[i], &tensors));
    merged.shards.push_back(parts[i].shards[0]);
  }
  for (auto& entry : tensors) merged.tensors.push_back(std::move(entry.second));
  MEGATRON_RETURN_IF_ERROR(CheckManifest(merged));
  MEGATRON_RETURN_IF_ERROR(CheckComplete(merged));
  return merged;
}

}  // namespace megatron
