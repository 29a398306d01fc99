// The header of a .safetensors file: which tensors it holds and where.
//
// The format (https://github.com/huggingface/safetensors): 8 bytes with the length N of the header,
// little-endian; N bytes of JSON, from '{' on, padded at the end with spaces; then the tensors'
// bytes, little-endian and row-major. Offsets count from the end of the header. Tensors cover the
// rest of the file without gap or overlap, so no file is larger in memory than on disk.
//
// Parsing is made for hostile files: it needs memory in proportion to the header, checks every size
// before it is used, and refuses what the format does not allow, duplicate keys included.
#ifndef MEGATRON_CHECKPOINT_SAFETENSORS_HEADER_H_
#define MEGATRON_CHECKPOINT_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/tensor/dtype.h"

namespace megatron {

// Longer headers are refused, as by the format's own library.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct SafetensorsTensor {
  std::string name;
  absl::string_view dtype;  // the format's name of it, "F32"; lives forever
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // its bytes, counted from the end of the header

  int64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsTensor> tensors;  // sorted by the order of their bytes
  int64_t data_begin = 0;                  // position in the file
};

// The format's name of a type, and the other way round; false where we have no such type, though
// the format has.
absl::string_view SafetensorsName(DType dtype);
bool FromSafetensorsName(absl::string_view name, DType* dtype);

// Reads the header at the start of `file`, the whole of a file. kDataLoss says what is wrong and
// with which tensor.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view file);

// Orders the tensors as the format's own library does (the widest types first, then by name), so
// that equal tensors give equal files, and sets their offsets and header->data_begin. Returns the
// bytes before the tensors' own. kInvalidArgument where ParseSafetensorsHeader would refuse them:
// names that occur twice or aren't UTF-8.
absl::StatusOr<std::string> LayOutSafetensors(SafetensorsHeader* header);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_SAFETENSORS_HEADER_H_
