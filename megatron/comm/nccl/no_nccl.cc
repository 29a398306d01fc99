#include "megatron/comm/nccl/nccl_api.h"

namespace megatron {

NcclApi* NcclLibrary() { return nullptr; }

}  // namespace megatron
