// Tells the emulated device that kernels run on it, which access its memory.
#include "megatron/tensor/emulated_cuda.h"

namespace megatron {

[[maybe_unused]] const bool kernels_are_emulated = EmulateKernels();

}  // namespace megatron
