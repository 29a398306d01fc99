// The states of Megatron's distributed optimizer in its form dp_reshardable: the buffers that each
// model-parallel rank keeps them in.
//
// A buffer has a rank's parameters of one part of the model, one behind another, the last module's
// first. Each begins at a multiple of 64 elements. A buffer is cut into buckets, and the checkpoint
// has a tensor of each state of each bucket. Which parameter lies where is not in the checkpoint:
// it follows from the model and from how ranks shared it. The weights show whether it does, for
// each is the rounded master.
#ifndef MEGATRON_TOOLS_TORCH_CHECKPOINT_OPTIMIZER_BUFFERS_H_
#define MEGATRON_TOOLS_TORCH_CHECKPOINT_OPTIMIZER_BUFFERS_H_

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
  // A rank's buffer of a part of the model.
  struct Place {
    int64_t rank = 0, chunk = 0;
    friend bool operator<(const Place& a, const Place& b) {
      return a.rank != b.rank ? a.rank < b.rank : a.chunk < b.chunk;
    }
  };
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
  using Order = std::vector<absl::string_view>;

  explicit OptimizerBuffers(const DcpWeights& checkpoint) : checkpoint_(&checkpoint) {}

  // Reads which buckets there are.
  absl::Status ReadBuckets(const MegatronLayout& layout);
  // Gives the parameters their places if those of a layer have this order.
  absl::Status Assign(const ModelOptions& model, const MegatronLayout& layout, const Order& order);
  absl::Status AssignPart(const ModelOptions& model, const MegatronLayout& layout, int part,
                          int tensor_rank, const Order& order);
  // Compares the masters with the weights.
  absl::Status Check(const ModelOptions& model, const std::vector<ShardedTensor>& weights) const;

  const DcpWeights* checkpoint_;
  std::map<Place, std::vector<Bucket>> buckets_;
  std::map<std::string, Whole> parameters_;
};

}  // namespace megatron

#endif  // MEGATRON_TOOLS_TORCH_CHECKPOINT_OPTIMIZER_BUFFERS_H_
