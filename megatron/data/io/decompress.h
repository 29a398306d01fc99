// Reads gzip and zstd as what is in them.
#ifndef MEGATRON_DATA_IO_DECOMPRESS_H_
#define MEGATRON_DATA_IO_DECOMPRESS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "megatron/data/io/byte_source.h"

namespace megatron {

// The bytes of `source`, decompressed where they begin as a gzip or zstd file does, else as they
// are. Several compressed files one behind the other are one. `name` serves messages, and where it
// ends in .gz or .zst, other contents are an error.
//
// kDataLoss, from here or from a Read, for what is damaged or ends too early: the checksums of both
// formats are compared, and no byte that can't be right is taken for the end. Memory is bounded
// whatever the input: a zstd file may ask for a window of 128 MiB, and is refused for more.
absl::StatusOr<std::unique_ptr<ByteSource>> Decompress(const std::string& name,
                                                       std::unique_ptr<ByteSource> source);

}  // namespace megatron

#endif  // MEGATRON_DATA_IO_DECOMPRESS_H_
