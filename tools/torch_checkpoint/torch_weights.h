// The weights of a checkpoint of PyTorch, whatever its format.
#ifndef MEGATRON_TOOLS_TORCH_CHECKPOINT_TORCH_WEIGHTS_H_
#define MEGATRON_TOOLS_TORCH_CHECKPOINT_TORCH_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class TorchWeights {
 public:
  virtual ~TorchWeights() = default;

  // Returns the names of all tensors, ascending.
  virtual std::vector<std::string> Names() const = 0;
  // Returns null where there is no tensor of that name.
  virtual const std::vector<int64_t>* ShapeOf(absl::string_view name) const = 0;
  // Writes the elements of a tensor, or where `index` is not negative those of that index in its
  // first dim, in their order, to the first elements of `out`, which has no fewer and is contiguous
  // and floating. Reads the files when it is called. kDataLoss for files that do not hold what the
  // checkpoint says.
  virtual absl::Status Read(absl::string_view name, int64_t index, const Tensor& out) const = 0;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_TORCH_CHECKPOINT_TORCH_WEIGHTS_H_
