// The weights of a Hugging Face model as the tensors of a checkpoint.
#ifndef MEGATRON_TOOLS_HUGGINGFACE_HF_IMPORT_WEIGHTS_H_
#define MEGATRON_TOOLS_HUGGINGFACE_HF_IMPORT_WEIGHTS_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/checkpoint/safetensors_reader.h"
#include "megatron/models/huggingface/hf_weights.h"
#include "megatron/models/model_options.h"

namespace megatron {

class HfImportWeights {
 public:
  // Finds every weight of `model`, of that model type, in the directory's files, and accounts for
  // every tensor there. Experts of gpt_oss may be in MXFP4 (mxfp4.h), whose values are exact in
  // bf16, and matrices of others in blocks of 8-bit floats (block_float8.h), which are rounded to
  // the type of the embedding. kDataLoss names what is missing, has another shape, or has no place;
  // kInvalidArgument says that the type can't be trained.
  static absl::StatusOr<HfImportWeights> Open(const std::string& directory,
                                              const ModelOptions& model,
                                              const std::string& model_type);

  DType dtype() const { return dtype_; }

  // The parameters, and of 16-bit ones the fp32 masters that training starts from. Their values are
  // read when they are saved, a parameter at a time, or an expert's part of one: saving takes the
  // memory of that, or for its master of one and a half. This must live as long.
  std::vector<ShardedTensor> Blocks() const;

 private:
  // A weight, and its place in the files.
  struct Found {
    HfTensor tensor;
    const SafetensorsTensor* file;              // the weight, or its quantized numbers
    const SafetensorsTensor* scales = nullptr;  // those of these numbers; null: it is not quantized

    bool is_mxfp4() const { return scales != nullptr && tensor.transposed > 0; }
  };

  explicit HfImportWeights(SafetensorsModel files)
      : files_(std::make_unique<SafetensorsModel>(std::move(files))) {}

  absl::Status Match(const std::string& directory, const ModelOptions& model,
                     const std::string& model_type);
  // Both return whether the weight is there in that way, and account for its tensors.
  bool TakeMxfp4(HfTensor* tensor, std::set<absl::string_view>* rest,
                 std::vector<std::string>* problems);
  bool TakeFloat8(HfTensor* tensor, std::set<absl::string_view>* rest,
                  std::vector<std::string>* problems);
  absl::Status FindType(const std::string& directory);
  // `out`, one part of a parameter, must be zero and have the weights' type.
  void FillParameter(const std::vector<const Found*>& parts, const Tensor& out) const;
  // `out` is in fp32.
  void FillState(const Found& found, const Tensor& out) const;

  std::unique_ptr<SafetensorsModel> files_;  // stays where it is when this is moved
  std::vector<Found> found_;
  DType dtype_ = DType::kFloat32;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_HUGGINGFACE_HF_IMPORT_WEIGHTS_H_
