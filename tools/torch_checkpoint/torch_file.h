// Files of torch.save: an archive with a pickle and the bytes of its tensors. Nothing is executed
// (pickle.h).
#ifndef MEGATRON_TOOLS_TORCH_CHECKPOINT_TORCH_FILE_H_
#define MEGATRON_TOOLS_TORCH_CHECKPOINT_TORCH_FILE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/tensor/dtype.h"
#include "megatron/tensor/tensor.h"
#include "tools/torch_checkpoint/pickle.h"
#include "tools/torch_checkpoint/zip_archive.h"

namespace megatron {

// A contiguous tensor in memory that belongs to others. The bytes may stand at any address.
struct TorchTensor {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  absl::string_view bytes;

  int64_t numel() const { return static_cast<int64_t>(bytes.size()) / SizeOf(dtype); }
};

class TorchFile {
 public:
  // `bytes` must live as long. kDataLoss for what is no such file.
  static absl::StatusOr<TorchFile> Parse(absl::string_view bytes);

  const PickleValue& root() const { return pickle_.root(); }
  // Returns the root, or where that is a list with one value, as Megatron keeps objects, the value.
  const PickleValue& object() const;
  // Returns the tensor that a value of this file is. kDataLoss for values that are none, and for
  // tensors that are not contiguous, not of fp32, bf16 or fp16, or larger than their bytes.
  absl::StatusOr<TorchTensor> TensorOf(const PickleValue& value) const;

 private:
  TorchFile(ZipArchive archive, Pickle pickle)
      : archive_(std::move(archive)), pickle_(std::move(pickle)) {}

  ZipArchive archive_;
  Pickle pickle_;
};

// Returns the type that "torch.bfloat16" or "torch.BFloat16Storage" names. kDataLoss for types
// without a counterpart.
absl::StatusOr<DType> TorchDType(absl::string_view name);

// Returns the sizes that a torch.Size, a tuple or a list of numbers says. kDataLoss for others, for
// negative numbers, and where their product leaves 2^48.
absl::StatusOr<std::vector<int64_t>> TorchSizes(const PickleValue& value);

// Copies `count` elements of the tensor from element `from` on to those of `out`, which is
// contiguous and floating, from element `to` on. Each is rounded once.
void CopyElements(const TorchTensor& tensor, int64_t from, int64_t count, const Tensor& out,
                  int64_t to);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_TORCH_CHECKPOINT_TORCH_FILE_H_
