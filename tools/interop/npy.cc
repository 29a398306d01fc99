#include "tools/interop/npy.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

const char* NumpyType(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kBFloat16:
      return "<f4";
    case DType::kFloat16:
      return "<f2";
    case DType::kInt32:
      return "<i4";
    case DType::kInt64:
      return "<i8";
    case DType::kUInt8:
      return "|u1";
    case DType::kUInt16:
      return "<u2";
  }
  LOG(FATAL) << static_cast<int>(dtype);
}

// Returns a Python tuple: (), (3,), (2, 3).
std::string Tuple(const Shape& shape) {
  std::string tuple = "(";
  for (int64_t dim : shape) absl::StrAppend(&tuple, tuple.size() > 1 ? ", " : "", dim);
  return tuple + (shape.rank() == 1 ? ",)" : ")");
}

std::string Header(const Tensor& tensor) {
  constexpr size_t kPrefix = 10;  // magic, version and length
  constexpr size_t kAlignment = 64;
  std::string text =
      absl::StrCat("{'descr': '", NumpyType(tensor.dtype()),
                   "', 'fortran_order': False, 'shape': ", Tuple(tensor.shape()), ", }");
  text.append(kAlignment - (kPrefix + text.size() + 1) % kAlignment, ' ');
  text.push_back('\n');
  std::string header("\x93NUMPY\x01\x00", 8);
  header.push_back(static_cast<char>(text.size() & 0xff));
  header.push_back(static_cast<char>(text.size() >> 8));
  return header + text;
}

absl::string_view Bytes(const void* data, int64_t size) {
  return absl::string_view(static_cast<const char*>(data), size);
}

}  // namespace

absl::Status WriteNpy(FileSystem& fs, const std::string& path, const Tensor& tensor) {
  CHECK(tensor.is_contiguous() && tensor.device().type == DeviceType::kCpu) << tensor;
  MEGATRON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, fs.Create(path));
  MEGATRON_RETURN_IF_ERROR(file->Append(Header(tensor)));
  if (tensor.dtype() == DType::kBFloat16) {
    const BFloat16* values = tensor.data<BFloat16>();
    std::vector<float> widened(tensor.numel());
    for (int64_t i = 0; i < tensor.numel(); ++i) widened[i] = ToFloat(values[i]);
    MEGATRON_RETURN_IF_ERROR(file->Append(Bytes(widened.data(), tensor.numel() * sizeof(float))));
  } else {
    MEGATRON_RETURN_IF_ERROR(file->Append(Bytes(tensor.raw(), tensor.bytes())));
  }
  return file->Close();
}

}  // namespace megatron
