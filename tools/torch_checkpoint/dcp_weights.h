// The tensors of a distributed checkpoint of PyTorch (DCP), as Megatron writes one with
// --ckpt-format torch_dist: `.metadata` says in which file each part of each tensor is, and the
// files, `__0_0.distcp` and so on, hold what torch.save made of each part.
#ifndef MEGATRON_TOOLS_TORCH_CHECKPOINT_DCP_WEIGHTS_H_
#define MEGATRON_TOOLS_TORCH_CHECKPOINT_DCP_WEIGHTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/base/mapped_file.h"
#include "tools/torch_checkpoint/torch_file.h"
#include "tools/torch_checkpoint/torch_weights.h"

namespace megatron {

// What torch.save made of something, in a file of the directory.
struct DcpPlace {
  std::string file;
  uint64_t begin = 0, length = 0;
};

// A part of a tensor.
struct DcpChunk : DcpPlace {
  std::vector<int64_t> offset, size;
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

struct DcpMetadata {
  std::map<std::string, DcpTensor, std::less<>> tensors;
  // What is there besides tensors. Megatron keeps each as a list with one value.
  std::map<std::string, DcpPlace, std::less<>> objects;
};

// Reads the text of a `.metadata`. Tensors of types that are not floating, and objects without a
// place, are left out. kDataLoss for what is no such text, for chunks outside their tensor or
// without a place, and for places outside the directory.
absl::StatusOr<DcpMetadata> ParseDcpMetadata(absl::string_view text);

class DcpWeights : public TorchWeights {
 public:
  static absl::StatusOr<std::unique_ptr<DcpWeights>> Open(const std::string& directory);

  std::vector<std::string> Names() const override;
  const std::vector<int64_t>* ShapeOf(absl::string_view name) const override;
  absl::Status Read(absl::string_view name, int64_t index, const Tensor& out) const override;
  // Writes the elements of a tensor with one dim from `begin` on to all those of `out`, as Read
  // does. The tensor has as many. Only the parts that they lie in are read.
  absl::Status ReadElements(absl::string_view name, int64_t begin, const Tensor& out) const;

  // Returns the names of what is there besides tensors, ascending.
  std::vector<std::string> ObjectNames() const;
  // Returns the file of torch.save that one of them is. kDataLoss where the file that holds it is
  // too short.
  absl::StatusOr<std::string> ReadObject(absl::string_view name) const;

 private:
  explicit DcpWeights(std::string directory) : directory_(std::move(directory)) {}

  absl::StatusOr<TorchTensor> PartOf(const DcpChunk& chunk) const;
  absl::Status ReadChunk(const DcpTensor& tensor, const DcpChunk& chunk, int64_t index,
                         const Tensor& out) const;
  // Releases the memory that reading the chunk took.
  void Forget(const DcpChunk& chunk) const;

  std::string directory_;
  DcpMetadata metadata_;
  std::map<std::string, MappedFile, std::less<>> files_;  // those of the tensors
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_TORCH_CHECKPOINT_DCP_WEIGHTS_H_
