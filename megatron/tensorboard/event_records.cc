#include "megatron/tensorboard/event_records.h"

#include <cstdint>

#include "megatron/base/crc32c.h"

namespace megatron::tensorboard {
namespace {

constexpr size_t kLengthBytes = 8, kChecksumBytes = 4, kHeaderBytes = kLengthBytes + kChecksumBytes;

// A checksum of data that holds checksums itself would be weak; so these are masked.
uint32_t MaskedCrc(absl::string_view data) {
  const uint32_t crc = Crc32c(data);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

void AppendLittleEndian(uint64_t value, size_t bytes, std::string* out) {
  for (size_t i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t LittleEndian(absl::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

}  // namespace

void AppendRecord(absl::string_view data, std::string* file) {
  const size_t start = file->size();
  AppendLittleEndian(data.size(), kLengthBytes, file);
  const uint32_t length_crc = MaskedCrc(absl::string_view(*file).substr(start, kLengthBytes));
  AppendLittleEndian(length_crc, kChecksumBytes, file);
  file->append(data.data(), data.size());
  AppendLittleEndian(MaskedCrc(data), kChecksumBytes, file);
}

std::optional<absl::string_view> TakeRecord(absl::string_view* bytes) {
  if (bytes->size() < kHeaderBytes + kChecksumBytes) return std::nullopt;
  const absl::string_view length_bytes = bytes->substr(0, kLengthBytes);
  if (LittleEndian(bytes->substr(kLengthBytes, kChecksumBytes)) != MaskedCrc(length_bytes))
    return std::nullopt;
  const uint64_t length = LittleEndian(length_bytes);
  if (length > bytes->size() - kHeaderBytes - kChecksumBytes) return std::nullopt;
  const absl::string_view data = bytes->substr(kHeaderBytes, length);
  if (LittleEndian(bytes->substr(kHeaderBytes + length, kChecksumBytes)) != MaskedCrc(data))
    return std::nullopt;
  bytes->remove_prefix(kHeaderBytes + length + kChecksumBytes);
  return data;
}

}  // namespace megatron::tensorboard
