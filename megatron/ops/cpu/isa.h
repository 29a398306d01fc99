// The instruction set that the CPU kernels of this process use.
//
// Every kernel is compiled for each instruction set. The choice is made once, at first use, by what
// the processor supports. Results may differ in the last bits between instruction sets, but never
// between processors or thread counts with the same one. The environment variable
// MEGATRON_CPU_ISA=avx2 (or avx512) overrides the choice, for comparisons and for runs that must
// repeat another machine's bits.
#ifndef MEGATRON_OPS_CPU_ISA_H_
#define MEGATRON_OPS_CPU_ISA_H_

#include "absl/status/status.h"

namespace megatron::ops {

enum class CpuIsa { kAvx2, kAvx512 };

// Returns an error if the kernels cannot run here: the processor lacks AVX2 or FMA, or the override
// is unknown or not supported. Programs call it before anything else.
absl::Status CheckCpu();

// CHECK-fails if CheckCpu fails.
CpuIsa ActiveIsa();

const char* IsaName();  // "avx2" or "avx512", as in the override

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_ISA_H_
