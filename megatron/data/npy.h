// NumPy's .npy files: a header that tells an array's type and shape, then its numbers.
//
// Format: NumPy enhancement proposal 1, versions 1.0 to 3.0; little-endian integers, floats and
// booleans in C order. Other files (objects, records, big-endian, Fortran order) are refused.
#ifndef MEGATRON_DATA_NPY_H_
#define MEGATRON_DATA_NPY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace megatron {

struct NpyArray {
  std::string type;            // as numpy writes it: "<i4", "<u4", "|b1"
  std::vector<int64_t> shape;  // empty for a single number
  absl::string_view data;      // points into the file's bytes, and is as long as type and shape say
};

// `file` holds the bytes of a whole file. Any bytes are safe to parse: what does not hold is
// kDataLoss.
absl::StatusOr<NpyArray> ParseNpy(absl::string_view file);

// What stands before the numbers, byte for byte what numpy.save writes (since 1.23). Its length is
// a multiple of 64.
std::string NpyHeader(absl::string_view type, absl::Span<const int64_t> shape);

}  // namespace megatron

#endif  // MEGATRON_DATA_NPY_H_
