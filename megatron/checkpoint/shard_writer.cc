#include "megatron/checkpoint/shard_writer.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/crc32c.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/names.h"
#include "megatron/checkpoint/shard_header.h"

namespace megatron {
namespace {

// The blocks that this rank writes, by name and offset.
std::vector<const ShardedTensor*> WrittenTensors(const CheckpointState& state) {
  std::vector<const ShardedTensor*> tensors;
  for (const ShardedTensor& tensor : state.tensors) {
    if (tensor.replica == 0) tensors.push_back(&tensor);
  }
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const ShardedTensor* a, const ShardedTensor* b) {
                     if (a->name != b->name) return a->name < b->name;
                     return std::lexicographical_compare(a->offset.begin(), a->offset.end(),
                                                         b->offset.begin(), b->offset.end());
                   });
  return tensors;
}

// Programs err here, users do not.
void CheckBlock(const ShardedTensor& block) {
  CHECK(block.tensor) << block.name;
  CHECK(block.tensor.is_contiguous()) << block.name << " " << block.tensor;
  const bool elsewhere = block.source || block.elements;
  CHECK(block.tensor.device().type == (elsewhere ? DeviceType::kMeta : DeviceType::kCpu))
      << block.name << " " << block.tensor;
  CHECK(IsInside({block.offset, block.tensor.shape()}, block.global_shape))
      << block.name << ": " << block.tensor << " at " << block.offset << " of "
      << block.global_shape;
}

absl::Status CheckNames(const CheckpointState& state) {
  if (!IsValidRunId(state.run_id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("run id '", state.run_id, "' is not 8 to 64 lower-case hexadecimal digits"));
  }
  const auto check = [](const std::string& name) {
    if (IsValidName(name)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "'", name, "' cannot be a name in a checkpoint: 1 to 256 of A-Z a-z 0-9 . _ / -, no '..'"));
  };
  for (const ShardedTensor& t : state.tensors) MEGATRON_RETURN_IF_ERROR(check(t.name));
  for (const auto& entry : state.ints) MEGATRON_RETURN_IF_ERROR(check(entry.first));
  for (const auto& entry : state.floats) MEGATRON_RETURN_IF_ERROR(check(entry.first));
  for (const auto& entry : state.strings) MEGATRON_RETURN_IF_ERROR(check(entry.first));
  return absl::OkStatus();
}

// Appends the bytes chunk by chunk and collects the checksums.
absl::Status AppendPiece(absl::string_view bytes, int64_t chunk_bytes, WritableFile* file,
                         std::vector<uint32_t>* crcs) {
  while (!bytes.empty()) {
    const absl::string_view chunk = bytes.substr(0, static_cast<size_t>(chunk_bytes));
    crcs->push_back(Crc32c(chunk));
    MEGATRON_RETURN_IF_ERROR(file->Append(chunk));
    bytes.remove_prefix(chunk.size());
  }
  return absl::OkStatus();
}

// The values of a block: its own, or those that its source has put into `memory`.
absl::StatusOr<absl::string_view> BytesOf(const ShardedTensor& block,
                                          std::vector<int64_t>* memory) {
  Tensor tensor = block.tensor;
  const size_t bytes = static_cast<size_t>(tensor.bytes());
  if (block.source) {
    memory->assign((bytes + sizeof(int64_t) - 1) / sizeof(int64_t), 0);
    tensor = Tensor(memory->data(), tensor.dtype(), tensor.shape());
    MEGATRON_RETURN_IF_ERROR(block.source(tensor), _ << "while writing " << block.name);
  }
  return absl::string_view(static_cast<const char*>(tensor.raw()), bytes);
}

// Appends a block that comes in pieces, of which each is a chunk.
absl::Status AppendElements(const ShardedTensor& block, int64_t chunk_bytes, WritableFile* file,
                            std::vector<uint32_t>* crcs, std::vector<int64_t>* memory) {
  const DType dtype = block.tensor.dtype();
  CHECK_EQ(chunk_bytes % SizeOf(dtype), 0) << block.name;
  const int64_t most = chunk_bytes / SizeOf(dtype), count = block.tensor.numel();
  for (int64_t begin = 0; begin < count; begin += most) {
    const Shape shape = {std::min(most, count - begin)};
    memory->assign((shape.numel() * SizeOf(dtype) + sizeof(int64_t) - 1) / sizeof(int64_t), 0);
    const Tensor piece(memory->data(), dtype, shape);
    MEGATRON_RETURN_IF_ERROR(block.elements(begin, piece), _ << "while writing " << block.name);
    MEGATRON_RETURN_IF_ERROR(AppendPiece(absl::string_view(static_cast<const char*>(piece.raw()),
                                                           static_cast<size_t>(piece.bytes())),
                                         chunk_bytes, file, crcs));
  }
  return absl::OkStatus();
}

absl::Status AppendTensors(const CheckpointState& state, WritableFile* file, Manifest* part) {
  size_t entry = 0;
  size_t piece = 0;
  std::vector<int64_t> memory;  // aligned for any type
  for (const ShardedTensor* block : WrittenTensors(state)) {
    if (block->tensor.numel() == 0) continue;
    // The plan has the pieces in the same order, perhaps after entries without any.
    while (piece == part->tensors[entry].pieces.size()) {
      ++entry;
      piece = 0;
    }
    std::vector<uint32_t>* const crcs = &part->tensors[entry].pieces[piece++].crcs;
    if (block->elements) {
      MEGATRON_RETURN_IF_ERROR(AppendElements(*block, part->chunk_bytes, file, crcs, &memory));
      continue;
    }
    MEGATRON_ASSIGN_OR_RETURN(const absl::string_view bytes, BytesOf(*block, &memory));
    MEGATRON_RETURN_IF_ERROR(AppendPiece(bytes, part->chunk_bytes, file, crcs));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Manifest> PlanShard(const CheckpointState& state, const ShardPlace& place) {
  MEGATRON_RETURN_IF_ERROR(CheckNames(state));
  Manifest part;
  part.run_id = state.run_id;
  part.iteration = state.iteration;
  part.chunk_bytes = place.chunk_bytes;
  part.shard_count = place.count;
  part.ints = state.ints;
  part.floats = state.floats;
  part.strings = state.strings;
  int64_t position = kShardHeaderBytes;
  for (const ShardedTensor* block : WrittenTensors(state)) {
    CheckBlock(*block);
    const DType dtype = block->tensor.dtype();
    if (part.tensors.empty() || part.tensors.back().name != block->name) {
      part.tensors.push_back({block->name, dtype, block->global_shape, {}});
    }
    TensorEntry& entry = part.tensors.back();
    CHECK(entry.dtype == dtype && entry.shape == block->global_shape)
        << "blocks of " << block->name << " differ in type or global shape";
    if (block->tensor.numel() == 0) continue;
    entry.pieces.push_back({place.index, position, {block->offset, block->tensor.shape()}, {}});
    position += block->tensor.bytes();
  }
  part.shards.push_back({place.index, position});
  return part;
}

absl::Status WriteShard(FileSystem& fs, const std::string& directory, const CheckpointState& state,
                        const std::function<void()>& state_is_read, Manifest* part) {
  const ShardEntry& shard = part->shards[0];
  const std::string path = JoinPath(directory, ShardFileName(shard.index, part->shard_count));
  MEGATRON_ASSIGN_OR_RETURN(const auto file, fs.Create(path));
  MEGATRON_RETURN_IF_ERROR(file->Append(EncodeShardHeader(
      {state.run_id, state.iteration, shard.index, part->shard_count, shard.bytes})));
  MEGATRON_RETURN_IF_ERROR(AppendTensors(state, file.get(), part));
  if (state_is_read) state_is_read();
  MEGATRON_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace megatron
