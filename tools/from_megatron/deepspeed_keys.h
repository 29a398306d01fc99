// The keys of DeepSpeed's ds_config.json that are not read by code.
#ifndef MEGATRON_TOOLS_FROM_MEGATRON_DEEPSPEED_KEYS_H_
#define MEGATRON_TOOLS_FROM_MEGATRON_DEEPSPEED_KEYS_H_

#include "absl/strings/string_view.h"
#include "tools/from_megatron/findings.h"

namespace megatron {

// What becomes of a key, or of a block of keys, which ends with ".*". The first row that names a
// key counts.
struct KeyRow {
  absl::string_view key;
  absl::string_view path;   // the field that is set, or empty
  absl::string_view usual;  // the value, as JSON, that needs nothing here; empty if there is none
  Effect effect;
  absl::string_view why;
};

// Returns null if no row names the key, as "zero_optimization.sub_group_size".
const KeyRow* FindKeyRow(absl::string_view key);

// Returns whether the block does nothing unless it has "enabled": true.
bool IsSwitchedBlock(absl::string_view key);

inline constexpr char kParametersStay[] =
    "parameters stay on the GPU: parallel.param_cpu_offload is for stage 3 with all of the "
    "optimizer's states on the host";

}  // namespace megatron

#endif  // MEGATRON_TOOLS_FROM_MEGATRON_DEEPSPEED_KEYS_H_
