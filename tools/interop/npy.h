// Writes tensors as NumPy files, which every Python tool reads with numpy.load.
//
// Format: NumPy enhancement proposal 1, version 1.0, little-endian, C order. bf16 has no NumPy
// type; it is written as fp32, which holds every bf16 value.
#ifndef MEGATRON_TOOLS_INTEROP_NPY_H_
#define MEGATRON_TOOLS_INTEROP_NPY_H_

#include <string>

#include "absl/status/status.h"
#include "megatron/base/file_system.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// `tensor` must be contiguous and on the CPU.
absl::Status WriteNpy(FileSystem& fs, const std::string& path, const Tensor& tensor);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_INTEROP_NPY_H_
