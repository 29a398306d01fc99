// Fuzzes the index parser: any bytes as an index, with any size of the .bin file, give either an
// error or an index that is consistent.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/indexed/indexed_dataset_index.h"
#include "megatron/data/little_endian.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using megatron::LoadLittleEndian;
  // The first two bytes are the size of the .bin file.
  if (size < 2) return 0;
  const int64_t bin_size = data[0] | data[1] << 8;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const absl::StatusOr<megatron::ParsedIndex> index = megatron::ParseIndex(bytes, bin_size);
  if (!index.ok()) return 0;
  const int64_t token_size = megatron::TokenSize(index->token_type);
  int64_t tokens = 0;
  for (int64_t i = 0; i < index->num_sequences; ++i) {
    const int64_t length = LoadLittleEndian<int32_t>(index->lengths, i);
    const int64_t offset = LoadLittleEndian<int64_t>(index->offsets, i);
    CHECK(length >= 0 && offset >= 0 && offset + length * token_size <= bin_size);
    tokens += length;
  }
  CHECK_LE(tokens * token_size, bin_size);
  int64_t previous = 0;
  for (int64_t i = 0; i <= index->num_documents; ++i) {
    const int64_t boundary = LoadLittleEndian<int64_t>(index->documents, i);
    CHECK(previous <= boundary && boundary <= index->num_sequences);
    previous = boundary;
  }
  CHECK_EQ(previous, index->num_sequences);
  return 0;
}
