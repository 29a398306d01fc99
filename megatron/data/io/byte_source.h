// A stream of bytes from a file, a pipe, stdin or memory.
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

// One thread at a time may use a ByteSource.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Fills the beginning of `buffer`, which must not be empty, and returns how many bytes were read:
  // at least one, or none at the end. A short read does not mean the end.
  virtual absl::StatusOr<size_t> Read(absl::Span<char> buffer) = 0;

  // Returns how many bytes have been read from storage so far; for a compressed file these are
  // compressed bytes.
  virtual int64_t stored_bytes_read() const = 0;
};

// Returns `contents` in pieces of at most `piece` bytes, as a pipe would deliver them.
std::unique_ptr<ByteSource> MakeMemorySource(std::string contents, size_t piece = SIZE_MAX);

// Opens a file or a pipe by its path, or stdin by "-". When *stop (which must outlive the source)
// becomes true, reads end with kCancelled; a read that waits for a pipe notices it within a tenth
// of a second.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenByteSource(const std::string& path,
                                                           const std::atomic<bool>* stop);

}  // namespace megatron

#endif  // MEGATRON_DATA_IO_BYTE_SOURCE_H_
