// Fuzzes ParseNpy: any bytes give either an error or an array whose header, written again, is read
// as the same type and shape.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/data/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view file(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<megatron::NpyArray> array = megatron::ParseNpy(file);
  if (!array.ok()) return 0;
  CHECK(array->data.empty() || array->data.data() + array->data.size() == file.data() + size);
  const std::string written =
      megatron::NpyHeader(array->type, array->shape) + std::string(array->data);
  const absl::StatusOr<megatron::NpyArray> again = megatron::ParseNpy(written);
  CHECK(again.ok()) << again.status();
  CHECK(again->type == array->type && again->shape == array->shape && again->data == array->data);
  return 0;
}
