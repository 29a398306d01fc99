// How the ranks that wrote a checkpoint of Megatron's shared the model.
#ifndef MEGATRON_TOOLS_TORCH_CHECKPOINT_MEGATRON_LAYOUT_H_
#define MEGATRON_TOOLS_TORCH_CHECKPOINT_MEGATRON_LAYOUT_H_

#include "absl/status/statusor.h"
#include "tools/torch_checkpoint/pickle.h"

namespace megatron {

struct MegatronLayout {
  int tensor_parallel = 1;         // number of ranks that share each layer
  int stages = 1;                  // of the pipeline
  int chunks = 1;                  // parts of the model on each stage
  int expert_parallel = 1;         // number of ranks with different experts
  int expert_tensor_parallel = 1;  // number of ranks that share each expert

  int parts() const { return stages * chunks; }
};

// Returns the layout that the arguments, an argparse.Namespace, say. kInvalidArgument names what is
// missing, and options that give stages different numbers of layers or optimizers of their own.
absl::StatusOr<MegatronLayout> LayoutOfMegatronArgs(const PickleValue& arguments);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_TORCH_CHECKPOINT_MEGATRON_LAYOUT_H_
