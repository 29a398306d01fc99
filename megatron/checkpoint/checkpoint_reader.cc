#include "megatron/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "glog/logging.h"
#include "megatron/base/crc32c.h"
#include "megatron/base/status_macros.h"
#include "megatron/checkpoint/checkpoint_directory.h"
#include "megatron/checkpoint/names.h"
#include "megatron/checkpoint/shard_header.h"

namespace megatron {
namespace {

std::string ToText(const Shape& shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}

// The bytes of one piece, checked chunk by chunk. Ranges must be asked for in rising order to have
// each chunk read once.
class PieceBytesReader {
 public:
  PieceBytesReader(const RandomAccessFile& file, const TensorEntry& tensor, const Piece& piece,
                   int64_t chunk_bytes)
      : file_(file),
        tensor_(tensor),
        piece_(piece),
        chunk_bytes_(chunk_bytes),
        piece_bytes_(PieceBytes(tensor, piece)) {}

  absl::Status Copy(int64_t begin, int64_t count, char* out) {
    while (count > 0) {
      const int64_t chunk = begin / chunk_bytes_;
      const int64_t skipped = begin - chunk * chunk_bytes_;
      const int64_t taken = std::min(count, ChunkSize(chunk) - skipped);
      if (taken == ChunkSize(chunk)) {
        MEGATRON_RETURN_IF_ERROR(ReadChunk(chunk, out));
      } else {
        MEGATRON_RETURN_IF_ERROR(Buffer(chunk));
        std::memcpy(out, buffer_.data() + skipped, static_cast<size_t>(taken));
      }
      begin += taken;
      count -= taken;
      out += taken;
    }
    return absl::OkStatus();
  }

  absl::Status CheckAll() {
    for (int64_t chunk = 0; chunk * chunk_bytes_ < piece_bytes_; ++chunk) {
      MEGATRON_RETURN_IF_ERROR(Buffer(chunk));
    }
    return absl::OkStatus();
  }

 private:
  int64_t ChunkSize(int64_t chunk) const {
    return std::min(chunk_bytes_, piece_bytes_ - chunk * chunk_bytes_);
  }

  absl::Status Buffer(int64_t chunk) {
    if (buffered_ == chunk) return absl::OkStatus();
    buffered_ = -1;
    buffer_.resize(static_cast<size_t>(ChunkSize(chunk)));
    MEGATRON_RETURN_IF_ERROR(ReadChunk(chunk, buffer_.data()));
    buffered_ = chunk;
    return absl::OkStatus();
  }

  absl::Status ReadChunk(int64_t chunk, char* out) const {
    const size_t size = static_cast<size_t>(ChunkSize(chunk));
    const int64_t offset = piece_.offset + chunk * chunk_bytes_;
    MEGATRON_RETURN_IF_ERROR(file_.ReadAt(offset, absl::MakeSpan(out, size)),
                             _ << "while reading tensor '" << tensor_.name << "'");
    const uint32_t expected = piece_.crcs[static_cast<size_t>(chunk)];
    const uint32_t crc = Crc32c(absl::string_view(out, size));
    if (crc == expected) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrFormat("bytes [%d, %d), of tensor '%s', have the CRC-32C %08x instead of %08x: "
                        "the file is damaged",
                        offset, offset + static_cast<int64_t>(size), tensor_.name, crc, expected));
  }

  const RandomAccessFile& file_;
  const TensorEntry& tensor_;
  const Piece& piece_;
  const int64_t chunk_bytes_;
  const int64_t piece_bytes_;
  std::vector<char> buffer_;
  int64_t buffered_ = -1;  // the chunk that buffer_ holds
};

absl::Status CheckHeader(const RandomAccessFile& file, const ShardHeader& expected) {
  std::string bytes(kShardHeaderBytes, '\0');
  MEGATRON_RETURN_IF_ERROR(file.ReadAt(0, absl::MakeSpan(bytes)));
  MEGATRON_ASSIGN_OR_RETURN(const ShardHeader header, DecodeShardHeader(bytes));
  if (header == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("bytes [0, ", kShardHeaderBytes, ") say ",
                                          ToString(header), ", but the manifest is of ",
                                          ToString(expected), ": files of two saves are mixed"));
}

}  // namespace

absl::StatusOr<CheckpointReader> CheckpointReader::Open(FileSystem& fs,
                                                        const std::string& directory) {
  const std::string path = JoinPath(directory, kManifestFileName);
  MEGATRON_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(fs, path));
  MEGATRON_RETURN_IF_ERROR(CheckComplete(manifest), _.SetPrepend() << "'" << path << "': ");
  const int count = manifest.shard_count;
  CheckpointReader reader(directory, std::move(manifest), [&fs, directory, count](int index) {
    return fs.OpenNoFollow(JoinPath(directory, ShardFileName(index, count)));
  });
  MEGATRON_RETURN_IF_ERROR(reader.CheckFiles(fs));
  return reader;
}

CheckpointReader CheckpointReader::OfParts(const std::string& name, Manifest manifest,
                                           ShardOpener open) {
  return CheckpointReader(name, std::move(manifest), std::move(open));
}

absl::Status CheckpointReader::CheckFiles(FileSystem& fs) const {
  MEGATRON_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(directory_));
  for (const std::string& name : names) {
    int index = 0;
    const bool listed = ParseShardFileName(name, &index) && index < manifest_.shard_count &&
                        name == ShardFileName(index, manifest_.shard_count);
    if (IsShardOrPartFileName(name) && !listed) {
      return absl::DataLossError(absl::StrCat("'", JoinPath(directory_, name),
                                              "' is not in the manifest: files of two saves are "
                                              "mixed"));
    }
  }
  for (int i = 0; i < manifest_.shard_count; ++i) {
    MEGATRON_RETURN_IF_ERROR(OpenShard(i).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> CheckpointReader::OpenShard(int index) const {
  const std::string path = ShardPath(index);
  auto file = open_(index);
  if (absl::IsNotFound(file.status())) {
    return absl::DataLossError(absl::StrCat("'", path, "' is missing"));
  }
  MEGATRON_RETURN_IF_ERROR(file.status());
  const auto shard = absl::c_find_if(
      manifest_.shards, [index](const ShardEntry& entry) { return entry.index == index; });
  CHECK(shard != manifest_.shards.end()) << index;
  const int64_t bytes = shard->bytes;
  if ((*file)->size() != bytes) {
    return absl::DataLossError(
        absl::StrCat("'", path, "' has ", (*file)->size(), " bytes, the manifest says ", bytes));
  }
  MEGATRON_RETURN_IF_ERROR(CheckHeader(**file, {manifest_.run_id, manifest_.iteration, index,
                                                manifest_.shard_count, bytes}),
                           _.SetPrepend() << "'" << path << "': ");
  return file;
}

absl::StatusOr<const TensorEntry*> CheckpointReader::Find(absl::string_view name) const {
  const TensorEntry* const entry = FindTensor(manifest_, name);
  if (entry != nullptr) return entry;
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint '", directory_, "' has no tensor '", name, "'"));
}

absl::Status CheckpointReader::Load(const ShardedTensor& block) const {
  MEGATRON_ASSIGN_OR_RETURN(const TensorEntry* const entry, Find(block.name));
  if (entry->shape != block.global_shape) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint '", directory_, "' is of another model: its tensor '", block.name,
        "' has the shape ", ToText(entry->shape), ", expected ", ToText(block.global_shape)));
  }
  return Read(block.name, block.offset, block.tensor);
}

absl::Status CheckpointReader::Read(absl::string_view name, const Shape& offset,
                                    const Tensor& out) const {
  CHECK(out.is_contiguous() && out.device().type == DeviceType::kCpu) << name << " " << out;
  MEGATRON_ASSIGN_OR_RETURN(const TensorEntry* const entry, Find(name));
  if (entry->dtype != out.dtype()) {
    return absl::FailedPreconditionError(absl::StrCat("tensor '", name, "' of checkpoint '",
                                                      directory_, "' is ", Name(entry->dtype),
                                                      ", expected ", Name(out.dtype())));
  }
  const Rectangle block{offset, out.shape()};
  if (!IsInside(block, entry->shape)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "tensor '", name, "' of checkpoint '", directory_, "' has the shape ", ToText(entry->shape),
        ": ", ToText(out.shape()), " elements at ", ToText(offset), " are not inside"));
  }
  for (const Piece& piece : entry->pieces) {
    MEGATRON_RETURN_IF_ERROR(ReadPiece(*entry, piece, block, static_cast<char*>(out.raw())));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::ReadPiece(const TensorEntry& tensor, const Piece& piece,
                                         const Rectangle& block, char* out) const {
  Rectangle common;
  if (!Intersect(piece.rectangle, block, &common)) return absl::OkStatus();
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, OpenShard(piece.shard));
  PieceBytesReader bytes(*file, tensor, piece, manifest_.chunk_bytes);
  const int64_t size = SizeOf(tensor.dtype);
  const absl::Status status = ForEachRun(piece.rectangle, block, common, [&](const CommonRun& run) {
    return bytes.Copy(run.source * size, run.count * size, out + run.target * size);
  });
  MEGATRON_RETURN_IF_ERROR(status, _.SetPrepend() << "'" << ShardPath(piece.shard) << "': ");
  return absl::OkStatus();
}

absl::Status CheckpointReader::VerifyPiece(const TensorEntry& tensor, const Piece& piece) const {
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, OpenShard(piece.shard));
  PieceBytesReader bytes(*file, tensor, piece, manifest_.chunk_bytes);
  MEGATRON_RETURN_IF_ERROR(bytes.CheckAll(), _.SetPrepend()
                                                 << "'" << ShardPath(piece.shard) << "': ");
  return absl::OkStatus();
}

std::string CheckpointReader::ShardPath(int index) const {
  return JoinPath(directory_, ShardFileName(index, manifest_.shard_count));
}

template <typename Value>
absl::StatusOr<Value> CheckpointReader::FindValue(const std::map<std::string, Value>& values,
                                                  const std::string& name) const {
  const auto entry = values.find(name);
  if (entry != values.end()) return entry->second;
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint '", directory_, "' has no value '", name, "'"));
}

absl::StatusOr<int64_t> CheckpointReader::Int(const std::string& name) const {
  return FindValue(manifest_.ints, name);
}

absl::StatusOr<double> CheckpointReader::Float(const std::string& name) const {
  return FindValue(manifest_.floats, name);
}

absl::StatusOr<std::string> CheckpointReader::String(const std::string& name) const {
  return FindValue(manifest_.strings, name);
}

std::vector<absl::Status> CheckpointReader::Verify() const {
  std::vector<absl::Status> errors;
  for (const TensorEntry& tensor : manifest_.tensors) {
    for (const Piece& piece : tensor.pieces) {
      absl::Status status = VerifyPiece(tensor, piece);
      if (!status.ok()) errors.push_back(std::move(status));
    }
  }
  return errors;
}

}  // namespace megatron
