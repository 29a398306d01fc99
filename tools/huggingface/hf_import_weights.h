// The weights of a Hugging Face model as the tensors of a checkpoint.
#ifndef MEGATRON_TOOLS_HUGGINGFACE_HF_IMPORT_WEIGHTS_H_
#define MEGATRON_TOOLS_HUGGINGFACE_HF_IMPORT_WEIGHTS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/checkpoint/safetensors_reader.h"
#include "megatron/models/huggingface/hf_weights.h"
#include "megatron/models/model_options.h"

namespace megatron {

class HfImportWeights {
 public:
  // Finds every weight of `model` in the directory's files, and accounts for every tensor there.
  // kDataLoss names what is missing, has another shape, or has no place; kInvalidArgument says that
  // the type can't be trained.
  static absl::StatusOr<HfImportWeights> Open(const std::string& directory,
                                              const ModelOptions& model);

  DType dtype() const { return dtype_; }

  // The parameters, and of 16-bit ones the fp32 masters that training starts from. Their values are
  // read when they are saved, a tensor at a time: saving takes the memory of one parameter, or for
  // its master of one and a half. This must live as long.
  std::vector<ShardedTensor> Blocks() const;

 private:
  // A weight, and its place in the files.
  struct Found {
    HfTensor tensor;
    const SafetensorsTensor* file;
  };

  explicit HfImportWeights(SafetensorsModel files)
      : files_(std::make_unique<SafetensorsModel>(std::move(files))) {}

  absl::Status Match(const std::string& directory, const ModelOptions& model);
  absl::Status FindType(const std::string& directory);
  // `out` must be zero and have the weights' type.
  void FillParameter(const std::vector<const Found*>& parts, const Tensor& out) const;

  std::unique_ptr<SafetensorsModel> files_;  // stays where it is when this is moved
  std::vector<Found> found_;
  DType dtype_ = DType::kFloat32;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_HUGGINGFACE_HF_IMPORT_WEIGHTS_H_
