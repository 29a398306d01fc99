#include "megatron/checkpoint/shard_header.h"

#include "absl/strings/str_cat.h"
#include "megatron/base/crc32c.h"

namespace megatron {
namespace {

constexpr absl::string_view kMagic = "MEGASHRD";
constexpr uint32_t kVersion = 1;

// Offsets of the fields.
constexpr size_t kVersionAt = 8;
constexpr size_t kHeaderBytesAt = 12;
constexpr size_t kIterationAt = 16;
constexpr size_t kIndexAt = 24;
constexpr size_t kCountAt = 28;
constexpr size_t kFileBytesAt = 32;
constexpr size_t kRunIdAt = 40;
constexpr size_t kRunIdBytes = 64;
constexpr size_t kCrcAt = 124;

// Little-endian whatever the machine is.
void Put(uint64_t value, size_t at, size_t bytes, std::string* out) {
  for (size_t i = 0; i < bytes; ++i) (*out)[at + i] = static_cast<char>(value >> (8 * i));
}

uint64_t Get(absl::string_view in, size_t at, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) {
    value |= uint64_t{static_cast<unsigned char>(in[at + i])} << (8 * i);
  }
  return value;
}

}  // namespace

std::string ToString(const ShardHeader& header) {
  return absl::StrCat("shard ", header.index, " of ", header.count, " of iteration ",
                      header.iteration, " of run ", header.run_id, " with ", header.file_bytes,
                      " bytes");
}

std::string EncodeShardHeader(const ShardHeader& header) {
  std::string out(kShardHeaderBytes, '\0');
  kMagic.copy(&out[0], kMagic.size());
  Put(kVersion, kVersionAt, 4, &out);
  Put(kShardHeaderBytes, kHeaderBytesAt, 4, &out);
  Put(static_cast<uint64_t>(header.iteration), kIterationAt, 8, &out);
  Put(static_cast<uint64_t>(header.index), kIndexAt, 4, &out);
  Put(static_cast<uint64_t>(header.count), kCountAt, 4, &out);
  Put(static_cast<uint64_t>(header.file_bytes), kFileBytesAt, 8, &out);
  header.run_id.copy(&out[kRunIdAt], kRunIdBytes);
  Put(Crc32c(absl::string_view(out).substr(0, kCrcAt)), kCrcAt, 4, &out);
  return out;
}

absl::StatusOr<ShardHeader> DecodeShardHeader(absl::string_view bytes) {
  if (bytes.size() < kShardHeaderBytes || bytes.substr(0, kMagic.size()) != kMagic) {
    return absl::DataLossError("bytes [0, 8) are not the start of a checkpoint shard");
  }
  bytes = bytes.substr(0, kShardHeaderBytes);
  if (Get(bytes, kCrcAt, 4) != Crc32c(bytes.substr(0, kCrcAt))) {
    return absl::DataLossError("bytes [0, 128), the header, do not match their CRC-32C");
  }
  if (Get(bytes, kVersionAt, 4) != kVersion) {
    return absl::DataLossError(absl::StrCat("it has format version ", Get(bytes, kVersionAt, 4),
                                            ", this program reads version ", kVersion));
  }
  ShardHeader header;
  const absl::string_view run_id = bytes.substr(kRunIdAt, kRunIdBytes);
  header.run_id = std::string(run_id.substr(0, run_id.find('\0')));
  header.iteration = static_cast<int64_t>(Get(bytes, kIterationAt, 8));
  header.index = static_cast<int>(Get(bytes, kIndexAt, 4));
  header.count = static_cast<int>(Get(bytes, kCountAt, 4));
  header.file_bytes = static_cast<int64_t>(Get(bytes, kFileBytesAt, 8));
  if (EncodeShardHeader(header) != bytes) {
    return absl::DataLossError("bytes [0, 128), the header, hold values that no writer writes");
  }
  return header;
}

}  // namespace megatron
