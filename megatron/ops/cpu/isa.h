// Which instruction set the CPU kernels of this process use.
//
// Every kernel is compiled for each of them; the choice is made once, at first use, by what the
// processor has. Results may differ in the last bits between instruction sets, never between
// processors or thread counts under one of them. The environment variable MEGATRON_CPU_ISA=avx2 (or
// avx512) overrides the choice, for comparisons and for runs that must repeat another machine's
// bits.
#ifndef MEGATRON_OPS_CPU_ISA_H_
#define MEGATRON_OPS_CPU_ISA_H_

#include "absl/status/status.h"

namespace megatron::ops {

enum class CpuIsa { kAvx2, kAvx512 };

// Says clearly why the kernels cannot run here: a processor without AVX2 and FMA, or an override
// that is unknown or not supported. Programs call it before anything else.
absl::Status CheckCpu();

// CHECK-fails where CheckCpu fails.
CpuIsa ActiveIsa();

const char* IsaName();  // "avx2", "avx512": the override's values

}  // namespace megatron::ops

#endif  // MEGATRON_OPS_CPU_ISA_H_
