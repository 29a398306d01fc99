// The states of Megatron's distributed optimizer in its form dp_reshardable: the buffers that each
// model-parallel rank keeps them in.
//
// A buffer has a rank's parameters of one part of the model, one behind another, the last module's
// first. Each begins at a multiple of 64 elements. A buffer is cut into buckets, and the checkpoint
// has a tensor of each state of each bucket. Which parameter lies where is not in the checkpoint:
// it follows from the model and from how ranks shared it. The weights show whether it does, for
// each is the rounded master.
//
// Where ranks have different experts, these have an optimizer of their own, and buffers of their
// own. Each expert's matrix is a parameter there.
#ifndef MEGATRON_TOOLS_TORCH_CHECKPOINT_OPTIMIZER_BUFFERS_H_
#define MEGATRON_TOOLS_TORCH_CHECKPOINT_OPTIMIZER_BUFFERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/checkpoint/checkpoint_state.h"
#include "megatron/checkpoint/rectangle.h"
#include "megatron/models/model_options.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/tensor.h"
#include "tools/torch_checkpoint/dcp_weights.h"
#include "tools/torch_checkpoint/megatron_layout.h"

namespace megatron {

class OptimizerBuffers {
 public:
  OptimizerBuffers(OptimizerBuffers&&) = default;
  OptimizerBuffers& operator=(OptimizerBuffers&&) = default;

  // Returns whether the checkpoint has states in this form.
  static bool AreIn(const DcpWeights& checkpoint);

  // Finds the place of each parameter, and compares its masters with `weights`, the blocks of whole
  // parameters, each of which has a source. The model is the checkpoint's. kInvalidArgument for
  // models whose order of parameters is not known, layouts that do not divide the model, and states
  // of other optimizers than Adam. kDataLoss for buffers that are not those of the model and the
  // layout. `checkpoint` must live as long.
  static absl::StatusOr<OptimizerBuffers> Open(const DcpWeights& checkpoint,
                                               const ModelOptions& model,
                                               const MegatronLayout& layout,
                                               const std::vector<ShardedTensor>& weights);

  // Writes a state of a parameter, "exp_avg", "exp_avg_sq" or "fp32_param", as a whole into `out`,
  // which is contiguous and fp32 and has the parameter's shape. kDataLoss for files that do not
  // hold what the checkpoint says.
  absl::Status Read(absl::string_view state, const std::string& parameter, const Tensor& out) const;

 private:
  struct Bucket {
    int64_t size = 0;
    std::map<std::string, std::string, std::less<>> names;  // there, by the state
  };
  // A rank's buffer of a part of the model: the optimizer (1: that of experts), the rank among
  // those that share the model, and the number of the part among the rank's.
  using Place = std::array<int64_t, 3>;
  // The block of a parameter that a rank has.
  struct Piece {
    Rectangle block;
    const Bucket* bucket = nullptr;
    int64_t begin = 0;  // in the bucket
  };
  struct Whole {
    Shape shape;
    std::vector<Piece> pieces;
  };
  // How Megatron's modules register parameters.
  struct Order {
    std::vector<absl::string_view> of_layer;
    bool has_grouped_experts = true;  // a matrix of all experts comes before their next one
  };
  // What a rank has of a parameter, or of one expert of it, and its place among all others.
  struct Local;

  explicit OptimizerBuffers(const DcpWeights& checkpoint) : checkpoint_(&checkpoint) {}

  // Reads which buckets there are.
  absl::Status ReadBuckets();
  static std::vector<Local> LocalsOf(const Parameter& parameter, const Order& order);
  // Gives the parameters their places if modules register them in this order.
  absl::Status Assign(const ModelOptions& model, const MegatronLayout& layout, const Order& order);
  // The same of what a rank has of all its parts. Of the experts' optimizer, `tensor_rank` is that
  // among the ranks that share an expert.
  absl::Status AssignRank(const ModelOptions& model, const MegatronLayout& layout,
                          const Order& order, int stage, int expert_rank, int tensor_rank,
                          bool of_experts);
  // The same of what a rank has of a part.
  absl::Status AssignBuffer(const Place& place, const std::vector<Local>& locals);
  // Compares the masters with the weights.
  absl::Status Check(const ModelOptions& model, const std::vector<ShardedTensor>& weights) const;

  const DcpWeights* checkpoint_;
  std::map<Place, std::vector<Bucket>> buckets_;
  std::map<std::string, Whole> parameters_;
  size_t buffers_in_use_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_TORCH_CHECKPOINT_OPTIMIZER_BUFFERS_H_
