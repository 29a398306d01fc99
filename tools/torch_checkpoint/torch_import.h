// The weights of a checkpoint of Megatron-LM or Megatron-DeepSpeed as the tensors of one of ours.
#ifndef MEGATRON_TOOLS_TORCH_CHECKPOINT_TORCH_IMPORT_H_
#define MEGATRON_TOOLS_TORCH_CHECKPOINT_TORCH_IMPORT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/models/model_options.h"
#include "tools/torch_checkpoint/torch_weights.h"

namespace megatron {

class TorchImport {
 public:
  // Finds every weight of the model, and accounts for every tensor of the checkpoint but the
  // optimizer's. A layer's weight is there under its own name, or as one of those of all layers
  // ("decoder.layers.mlp.linear_fc1.weight", whose first dim are the layers). Rows that pad the
  // vocabulary may be missing. What a mixer of a hybrid model projects, and its convolution, are
  // there in parts ("in_proj.weight.z"), each of all groups. kDataLoss names what is missing, has
  // another shape, or has no place.
  static absl::StatusOr<TorchImport> Match(const TorchWeights& weights, const ModelOptions& model);

  // The parameters in the model's type, and of 16-bit ones the fp32 masters: the checkpoint's own
  // where it has them, else the parameters. Each is read when it is saved, as a whole. `weights`
  // must live as long.
  std::vector<ShardedTensor> Blocks() const;

  // The same, and Adam's moments in fp32. kDataLoss names what the checkpoint lacks of them or of
  // the masters; kInvalidArgument states of another optimizer.
  absl::StatusOr<std::vector<ShardedTensor>> BlocksWithStates() const;

  // Writes a state of a parameter of the model, "fp32_param", "exp_avg" or "exp_avg_sq", as a whole
  // into fp32 memory of the parameter's shape.
  using StateReader = std::function<absl::Status(absl::string_view state,
                                                 const std::string& parameter, const Tensor& out)>;
  // The same with masters and moments that `read` gives.
  std::vector<ShardedTensor> BlocksWithStates(const StateReader& read) const;

 private:
  // The name there of each tensor that a state of the optimizer has, by the name of the parameter's
  // tensor.
  using StateNames = std::map<std::string, std::string, std::less<>>;

  // A part of a parameter: so many rows of each of its groups, which are its first dim.
  struct Part {
    std::string name;  // behind that of the parameter
    int64_t rows = 0;
  };
  struct Found {
    std::string parameter;
    Shape shape;
    std::string name;    // there
    int64_t index = -1;  // in the first dim there; -1: it is all of it
    bool is_state = false;
    std::vector<Part> parts;  // in the order of a group's rows; empty: it is one tensor there
  };

  explicit TorchImport(const TorchWeights& weights) : weights_(&weights) {}

  static std::vector<Part> PartsOf(const TransformerOptions& layer, absl::string_view parameter);
  // Returns the names there of a found parameter's tensors.
  static std::vector<std::string> NamesOf(const Found& found);
  // Notes the name of a tensor of the optimizer's.
  void AddState(const std::string& name);
  // Returns the names there of a state's tensors ("exp_avg"), or nothing where one is missing or
  // has another shape than the parameter's.
  std::vector<std::string> StateNamesOf(const Found& found, absl::string_view state) const;
  absl::Status ReadParts(const Found& found, const std::vector<std::string>& names,
                         const Tensor& out) const;
  // Returns a block with the found parameter's shape, whose source is yet to be set.
  static ShardedTensor EmptyBlock(const Found& found, const std::string& ours, DType dtype);
  // The block is read from the tensors of these names.
  ShardedTensor Block(const Found& found, const std::string& ours, std::vector<std::string> names,
                      DType dtype) const;
  // The block of a parameter's own values.
  ShardedTensor WeightBlock(const Found& found) const;

  const TorchWeights* weights_;
  DType dtype_ = DType::kFloat32;
  std::vector<Found> found_;
  std::map<std::string, StateNames, std::less<>> states_;  // by the state's name
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_TORCH_CHECKPOINT_TORCH_IMPORT_H_
