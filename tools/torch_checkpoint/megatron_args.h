// The arguments that a checkpoint of Megatron keeps, as a model or a run of ours.
#ifndef MEGATRON_TOOLS_TORCH_CHECKPOINT_MEGATRON_ARGS_H_
#define MEGATRON_TOOLS_TORCH_CHECKPOINT_MEGATRON_ARGS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "megatron/train/config/config.pb.h"
#include "tools/torch_checkpoint/pickle.h"

namespace megatron {

// Returns the sections `model` and `precision` that the arguments, an argparse.Namespace, describe.
// kInvalidArgument for arguments that are none, and for options of the model without a counterpart,
// which it names.
absl::StatusOr<config::PretrainConfig> ConfigOfMegatronArgs(const PickleValue& arguments);

// Returns the same, and how the run trains: the sections `optimizer` and `train`, and of `data`
// what says how samples are made. The files, the layout and what is logged are left out.
absl::StatusOr<config::PretrainConfig> ConfigOfMegatronRun(const PickleValue& arguments);

// Copies how samples are made of the files: the split, and what ends of documents mean.
void CopySamples(const config::DataConfig& from, config::DataConfig* to);

// Returns an argument that is a whole number; -1 where there is none.
int64_t MegatronNumber(const PickleValue& arguments, absl::string_view name);

}  // namespace megatron

#endif  // MEGATRON_TOOLS_TORCH_CHECKPOINT_MEGATRON_ARGS_H_
