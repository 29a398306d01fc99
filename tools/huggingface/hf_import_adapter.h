// The low-rank adapters of a PEFT directory as the tensors of a checkpoint.
#ifndef MEGATRON_TOOLS_HUGGINGFACE_HF_IMPORT_ADAPTER_H_
#define MEGATRON_TOOLS_HUGGINGFACE_HF_IMPORT_ADAPTER_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/models/model_options.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class HfImportAdapter {
 public:
  // Reads the adapters of `model`, a `model_type` there, and sets model->transformer.lora. Layers
  // there that are one of ours, such as q_proj, k_proj and v_proj, may have different A: ours then
  // has all of them one below the other, with as many times the dim and the alpha, and the product
  // is the same. Layers without an adapter there get one of zeros where another layer of that name
  // has one.
  //
  // kInvalidArgument or kDataLoss name the file and what is wrong: tensors of another shape, or
  // that have no place in the model.
  static absl::StatusOr<HfImportAdapter> Open(FileSystem& fs, const std::string& directory,
                                              absl::string_view model_type, ModelOptions* model);

  // The parameters, in the type of the model's weights, and where that has 16 bits their fp32
  // masters. This must live as long.
  std::vector<ShardedTensor> Blocks(DType dtype) const;

 private:
  struct Values {
    Shape shape;
    std::vector<float> values;
  };
  std::map<std::string, Values> parameters_;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_HUGGINGFACE_HF_IMPORT_ADAPTER_H_
