// Reads gzip and zstd files as the text they contain.
#ifndef MEGATRON_DATA_IO_DECOMPRESS_H_
#define MEGATRON_DATA_IO_DECOMPRESS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "megatron/data/io/byte_source.h"

namespace megatron {

// Returns the decompressed bytes of `source` if it begins as a gzip or zstd file does, else its
// bytes unchanged. Several compressed files in a row are read as one. `name` serves messages; if it
// ends in .gz or .zst, other contents are an error.
//
// Decompress and Read return kDataLoss for input that is damaged or ends too early: the checksums
// of both formats are verified, and no invalid byte is taken for the end. Memory is bounded
// whatever the input: a zstd file may ask for a window of at most 128 MiB.
absl::StatusOr<std::unique_ptr<ByteSource>> Decompress(const std::string& name,
                                                       std::unique_ptr<ByteSource> source);

}  // namespace megatron

#endif  // MEGATRON_DATA_IO_DECOMPRESS_H_
