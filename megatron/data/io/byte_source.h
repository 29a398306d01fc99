// Bytes that come one piece after the other: from a file, a pipe, stdin or memory.
#ifndef MEGATRON_DATA_IO_BYTE_SOURCE_H_
#define MEGATRON_DATA_IO_BYTE_SOURCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace megatron {

// One thread at a time.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Fills the beginning of `buffer`, which must not be empty, and returns how many bytes it now
  // holds: at least one, or none at the end. A short read does not mean the end.
  virtual absl::StatusOr<size_t> Read(absl::Span<char> buffer) = 0;

  // Bytes read so far from where the bytes lie: of a compressed file, its own.
  virtual int64_t stored_bytes_read() const = 0;
};

// `contents` in pieces of at most `piece` bytes, as a pipe would give them.
std::unique_ptr<ByteSource> MakeMemorySource(std::string contents, size_t piece = SIZE_MAX);

// Opens a file or a pipe by its path, stdin by "-". *stop (which must outlive the source)
// becoming true ends reads with kCancelled, within a tenth of a second where a pipe keeps one
// waiting.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenByteSource(const std::string& path,
                                                           const std::atomic<bool>* stop);

}  // namespace megatron

#endif  // MEGATRON_DATA_IO_BYTE_SOURCE_H_
