// NumPy's .npy files: a header that describes an array's type and shape, then its elements.
//
// The format is NumPy enhancement proposal 1, versions 1.0 to 3.0; this reads little-endian
// integers, floats and booleans in C order. Other files (objects, records, big-endian, Fortran
// order) are refused.
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
  std::string type;            // numpy's notation: "<i4", "<u4", "|b1"
  std::vector<int64_t> shape;  // empty for a single number
  absl::string_view data;  // points into the file's bytes; its length follows from type and shape
};

// Parses the bytes of a whole file. Any bytes are safe to parse: an invalid file is kDataLoss.
absl::StatusOr<NpyArray> ParseNpy(absl::string_view file);

// Returns the header, byte for byte as numpy.save writes it since numpy 1.23. Its length is a
// multiple of 64.
std::string NpyHeader(absl::string_view type, absl::Span<const int64_t> shape);

}  // namespace megatron

#endif  // MEGATRON_DATA_NPY_H_
