// Tests that no bytes crash the reader of torch.save's files, and that the tensors that it finds
// lie within them.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/torch_checkpoint/torch_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto pickle = megatron::Pickle::Parse(bytes);
  if (pickle.ok()) (void)megatron::TorchSizes(pickle->root());
  const auto file = megatron::TorchFile::Parse(bytes);
  if (!file.ok()) return 0;
  for (const auto& [key, value] : file->root().entries) {
    const auto tensor = file->TensorOf(*value);
    if (!tensor.ok()) continue;
    std::vector<float> values(static_cast<size_t>(tensor->numel()));
    const megatron::Tensor out(values.data(), megatron::DType::kFloat32, {tensor->numel()});
    megatron::CopyElements(*tensor, 0, tensor->numel(), out, 0);
  }
  return 0;
}
