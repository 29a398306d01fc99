// The tensors of a distributed checkpoint of PyTorch (DCP), as Megatron writes one with
// --ckpt-format torch_dist: `.metadata` says in which file each part of each tensor is, and the
// files, `__0_0.distcp` and so on, hold what torch.save made of each part.
#ifndef MEGATRON_TOOLS_TORCH_CHECKPOINT_DCP_WEIGHTS_H_
#define MEGATRON_TOOLS_TORCH_CHECKPOINT_DCP_WEIGHTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "megatron/base/mapped_file.h"
#include "tools/torch_checkpoint/torch_weights.h"

namespace megatron {

// A part of a tensor, and its place in a file.
struct DcpChunk {
  std::vector<int64_t> offset, size;
  std::string file;
  uint64_t begin = 0, length = 0;
};

struct DcpTensor {
  std::vector<int64_t> shape;
  // Each lies within the shape, or where `block` is set within the numbers of blocks along each dim
  // and, as a last dim, the elements of a block.
  std::vector<DcpChunk> chunks;
  // The shape of a block, of which each chunk has consecutive elements: Megatron's distributed
  // optimizer keeps its states so (fully_sharded_model_space). Empty for any other tensor.
  std::vector<int64_t> block;
};

// Reads the text of a `.metadata`. Tensors of types that are not floating, and objects, are left
// out. kDataLoss for what is no such text, for chunks outside their tensor or without a place, and
// for places outside the directory.
absl::StatusOr<std::map<std::string, DcpTensor, std::less<>>> ParseDcpMetadata(
    absl::string_view text);

class DcpWeights : public TorchWeights {
 public:
  static absl::StatusOr<std::unique_ptr<DcpWeights>> Open(const std::string& directory);

  std::vector<std::string> Names() const override;
  const std::vector<int64_t>* ShapeOf(absl::string_view name) const override;
  absl::Status Read(absl::string_view name, int64_t index, const Tensor& out) const override;

 private:
  DcpWeights() = default;

  absl::Status ReadChunk(const DcpTensor& tensor, const DcpChunk& chunk, int64_t index,
                         const Tensor& out) const;

  std::map<std::string, DcpTensor, std::less<>> tensors_;
  std::map<std::string, MappedFile, std::less<>> files_;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_TORCH_CHECKPOINT_DCP_WEIGHTS_H_
